"""Lesson 10: tokens that are read one step behind."""

from dataclasses import replace

from labkit.ladder import LADDER
from labkit.learn.gates.gate import Gate
from labkit.learn.gates.in_flight import flights_proven
from labkit.learn.gates.resident import MIXED

# Every other request may end before its limit, with a step in flight.
ENDING = tuple(replace(params, stop_on_eos=True) for params in MIXED[:2]) + MIXED[2:]

GATE = Gate("readback", LADDER["09"].options, (), (flights_proven,), ENDING)
