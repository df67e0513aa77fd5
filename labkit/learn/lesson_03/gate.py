"""Lesson 03: one kernel for the whole batch at one position."""

from labkit.ladder import LADDER
from labkit.learn.gates.cached import STORED, TRUE_RECORDS
from labkit.learn.gates.gate import Gate
from labkit.learn.gates.writes import write_trials

GATE = Gate(
    ("kv_write",),
    LADDER["02"].options,
    invariants=(TRUE_RECORDS, STORED),
    trials=write_trials("full_batch"),
    interpreted=("kv_write",),
)
