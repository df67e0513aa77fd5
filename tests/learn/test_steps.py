"""Build steps: which lessons have them, and when a lesson is passed."""

import pytest

from labkit.learn.lessons import GATES
from labkit.learn.steps import STEPS, share_right


def test_a_lessons_steps_have_a_mark_each_and_complete_its_options():
    for number, gate in GATES.items():
        assert len(set(STEPS[number])) == len(STEPS[number]) > 1
        assert set(gate.parts) <= set(STEPS[number])


@pytest.mark.parametrize(
    ("lesson", "done", "share"),
    [
        ("00", (), 0),
        ("00", ("my_gather",), 0.25),
        ("00", ("my_loops", "my_gather"), 0.5),
        ("00", ("attention",), 1),
        ("00", ("unknown",), 0),
        ("16", ("my_bound",), 1 / 3),  # by itself
        ("16", ("my_bound", "my_attend", "my_quantize"), 1),
    ],
)
def test_each_right_step_counts_and_one_that_holds_all_others_passes_the_lesson(lesson, done, share):
    assert share_right(lesson, done) == share
