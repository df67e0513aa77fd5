"""Lesson 04: one kernel for the whole batch at differing positions."""

from labkit.ladder import LADDER
from labkit.learn.gates.cached import STORED, TRUE_RECORDS
from labkit.learn.gates.gate import Gate
from labkit.learn.gates.writes import write_trials

GATE = Gate(
    ("kv_write",),
    LADDER["03"].options,
    invariants=(TRUE_RECORDS, STORED),
    trials=write_trials("full_batch", "identity_pos"),
    interpreted=("kv_write",),
)
