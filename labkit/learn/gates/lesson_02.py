"""Lesson 02: one append per layer for the whole batch."""

from labkit.ladder import LADDER
from labkit.learn.gates.appends import failed_write, own_slots
from labkit.learn.gates.cached import wrong_number, wrong_record
from labkit.learn.gates.gate import Gate
from labkit.learn.gates.schedule import Invariant

COUNTED_ONCE = Invariant(
    "every layer counts each token once",
    wrong_record,
    "After the write, each request's last block counts one token more, in every layer.",
)
STORED = Invariant(
    "the cache holds each token's own key and value",
    wrong_number,
    "Row b of a layer's keys and of its values goes behind request b's last token, in that layer.",
)

GATE = Gate(
    "kv_append", LADDER["01"].options, invariants=(COUNTED_ONCE, STORED), trials=(own_slots, failed_write)
)
