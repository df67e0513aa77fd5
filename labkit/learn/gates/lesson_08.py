"""Lesson 08: a device's step that is captured once, and replayed."""

from labkit.ladder import LADDER
from labkit.learn.gates.gate import Gate
from labkit.learn.gates.resident import MIXED
from labkit.learn.gates.same_step import replays_proven, steps_proven

GATE = Gate("launch", LADDER["07"].options, (), (replays_proven, steps_proven), MIXED)
