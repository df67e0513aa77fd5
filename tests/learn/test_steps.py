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
    [("00", ("unknown",), 0), ("16", ("my_bound",), 1 / 3)],  # which is right by itself
)
def test_a_lesson_is_passed_by_its_own_steps_alone(lesson, done, share):
    assert share_right(lesson, done) == share
