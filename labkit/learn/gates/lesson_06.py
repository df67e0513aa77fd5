"""Lesson 06: slots on the device that follow what the host knows."""

from labkit.ladder import LADDER
from labkit.learn.gates.gate import Gate
from labkit.learn.gates.resident import MIXED, launches_proven, wrong_padding
from labkit.learn.gates.schedule import Invariant

EMPTY_PADDING = Invariant(
    "the padding slot stays empty",
    wrong_padding,
    "Nothing is ever sent to it: it is the slot after the last, and no request has it.",
)

GATE = Gate("block_tables", LADDER["05"].options, (EMPTY_PADDING,), (launches_proven,), MIXED)
