"""Lesson 10's gate: likely mistakes in the hints are refused by what they break, and right ways pass."""

import pytest
from gate_tests import mistake_tests

from labkit.paths import ROOT

pytestmark = pytest.mark.slow

ORDER, ROWS, GOING_ON = range(3)
BEHIND = "        self.in_flight = self.launch_behind(step, running)"
UNCHECKED = """        going = self.going_on(dict(running), frozenset(step.sessions))
        self.in_flight = self.decode_step.launch(going) if going else None"""
STEP = "step = self.in_flight = self.in_flight or self.decode_step.launch(running)"
FORGOTTEN = "step = self.decode_step.launch(running)\n        self.launch_behind(step, running)"
IN_ITS_SESSION = "running.get(step.requests[row]) is step.sessions[row]"
MISTAKES = [
    (ORDER, "step = self.in_flight = ", "step = ", "a step stays in flight if the launch after it fails"),
    (ORDER, BEHIND, UNCHECKED, "OutOfBlocksError: layer 0 has no free block"),
    (ORDER, "hand_out(step,", "hand_out(self.in_flight or step,", "found raised IndexError: list index out"),
    (ORDER, f"{STEP}\n{BEHIND}", FORGOTTEN, "every step is read once, in the order of the launches found"),
    (ROWS, "return [row for", "return [step.requests[row] for", "found raised TypeError: list indices"),
    (ROWS, IN_ITS_SESSION, "step.requests[row] in running", "it was preempted, and has come back in a new"),
    (ROWS, IN_ITS_SESSION, "step.sessions[row] in list(running.values())", ""),
    (GOING_ON, " + (session in in_flight)", "", "step 6 is launched for request 1, whose last token of 2 is"),
    (GOING_ON, "(session in in_flight)", "(request in in_flight)", "if `in_flight` has the session"),
    (GOING_ON, "(session in in_flight)", "1", "every request that has a token to make is launched found"),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(
    ROOT / "notebooks" / "10_overlap.ipynb", MISTAKES
)
