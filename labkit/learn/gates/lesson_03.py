"""Lesson 03: one kernel for the whole batch at one position."""

from labkit.ladder import LADDER
from labkit.learn.gates.gate import Gate
from labkit.learn.gates.lesson_02 import COUNTED_ONCE, STORED
from labkit.learn.gates.writes import far_blocks, right_slots


def path_of(is_whole: bool, is_constant: bool) -> str:
    """The path of a write of the whole batch or not, at one position or not."""
    return "full_batch" if is_whole and is_constant else "generic"


GATE = Gate(
    "kv_write",
    LADDER["02"].options,
    invariants=(COUNTED_ONCE, STORED),
    trials=(right_slots(path_of), far_blocks),
)
