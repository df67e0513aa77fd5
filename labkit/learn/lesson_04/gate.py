"""Lesson 04: one kernel for the whole batch at differing positions."""

from labkit.ladder import LADDER
from labkit.learn.gates.cached import STORED, TRUE_RECORDS
from labkit.learn.gates.gate import Gate
from labkit.learn.gates.writes import far_blocks, few_indices, right_again, right_slots


def path_of(is_whole: bool, is_constant: bool) -> str:
    """The path of a write of the whole batch or not, at one position or not."""
    if not is_whole:
        return "generic"
    return "full_batch" if is_constant else "identity_pos"


GATE = Gate(
    ("kv_write",),
    LADDER["03"].options,
    invariants=(TRUE_RECORDS, STORED),
    trials=(right_again(path_of), right_slots(path_of), few_indices, far_blocks),
    interpreted=("kv_write",),
)
