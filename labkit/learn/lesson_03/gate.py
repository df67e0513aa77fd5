"""Lesson 03: one kernel for the whole batch at one position."""

from labkit.ladder import LADDER
from labkit.learn.gates.cached import STORED, TRUE_RECORDS
from labkit.learn.gates.gate import Gate
from labkit.learn.gates.writes import far_blocks, few_indices, right_again, right_slots


def path_of(is_whole: bool, is_constant: bool) -> str:
    """The path of a write of the whole batch or not, at one position or not."""
    return "full_batch" if is_whole and is_constant else "generic"


GATE = Gate(
    ("kv_write",),
    LADDER["02"].options,
    invariants=(TRUE_RECORDS, STORED),
    trials=(right_slots(path_of), right_again(path_of), few_indices, far_blocks),
    interpreted=("kv_write",),
)
