"""Build steps: which lessons have them, and when a lesson is passed."""

import pytest

from labkit.learn.lessons import GATES
from labkit.learn.steps import STEPS, share_right


def test_a_lessons_steps_have_a_mark_each_and_complete_its_options():
    for number, gate in GATES.items():
        assert len(set(STEPS[number])) == len(STEPS[number]) > 1
        assert set(gate.parts) <= set(STEPS[number])


@pytest.mark.parametrize(
    ("done", "share"), [((), 0), (("a",), 0.25), (("c", "a"), 0.5), (("d",), 1), (("unknown",), 0)]
)
def test_each_right_step_counts_and_the_last_one_passes_the_lesson(done, share):
    assert share_right(("a", "b", "c", "d"), done) == share
