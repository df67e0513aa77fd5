"""The home page: where to continue, and what was done."""

import pytest

from labkit.ladder import all_pages
from labkit.learn.home import MINUTES, ROUTES, Home
from labkit.learn.progress import Guess, LessonProgress
from labkit.learn.steps import STEPS

READ = LessonProgress(guesses={"a question": Guess(1, 2)})
OPEN, DONE = LessonProgress(("MyRows",)), LessonProgress(STEPS["01"])


@pytest.mark.parametrize(
    ("done", "number"),
    [
        ({}, "before_00"),
        ({"before_00": READ}, "00"),
        ({"00": READ, "01": OPEN}, "01"),
        ({"01": DONE}, "02"),
        ({"02": READ, "01": DONE}, "02"),
        ({"20": LessonProgress(STEPS["20"])}, "20"),
    ],
)
def test_a_reader_continues_with_the_last_lesson_begun_or_the_one_after_it(done, number):
    assert Home(done).next_page.number == number


def test_each_notebook_has_a_line_with_what_was_done_in_it():
    lines = Home({"01": OPEN, "02": READ})._repr_markdown_().splitlines()
    rows = [line.split(" | ")[1:] for line in lines if line.startswith("| ") and ".ipynb" in line]
    assert [row[0].split("](")[1] for row in rows] == [f"{page.notebook})" for page in all_pages()]
    of_01, of_02 = rows[2], rows[3]
    assert of_01[2:4] == ["65", "1 of 3"] and of_02[3:] == ["0 of 3", "1 |"]


def test_every_page_has_its_minutes_and_routes_name_pages():
    assert list(MINUTES) == [page.number for page in all_pages()]
    assert all({*route} <= {*MINUTES} for route in ROUTES.values())
