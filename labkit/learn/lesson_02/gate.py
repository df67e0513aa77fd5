"""Lesson 02: one append per layer for the whole batch."""

from labkit.ladder import LADDER
from labkit.learn.gates.appends import failed_write, own_slots
from labkit.learn.gates.cached import STORED, TRUE_RECORDS
from labkit.learn.gates.gate import Gate

GATE = Gate(
    ("kv_append",),
    LADDER["01"].options,
    invariants=(TRUE_RECORDS, STORED),
    trials=(own_slots, failed_write),
)
