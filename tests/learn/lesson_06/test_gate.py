"""Lesson 06's gate: likely mistakes in the hints are refused by what they break, and right ways pass."""

import pytest
from gate_tests import mistake_tests

from labkit import lab
from labkit.engine.step.slots import DeviceSlots
from labkit.paths import ROOT

pytestmark = pytest.mark.slow

KEPT, DIRTY, ONCE = range(3)
STAY = "        self.slot_of = {s: slot for s, slot in self.slot_of.items() if s in sessions}\n"
FREE = "        free = set(range(self.padding_slot)) - set(self.slot_of.values())\n"
ALL_FREE = "        free = set(range(self.padding_slot))\n"
IN_TURN = "max(set(range(self.padding_slot)) - set(self.slot_of.values()))"
ASSIGN, MAPPING = "        self.assign(sessions)\n", "        self.send_mapping(sessions)\n"
IS_DIRTY = "return sorted(set(joined).union(*changed))"
SENT = "        self.send_dirty(sessions, joined, changed)\n"
TOKENS = f"""{SENT}        for request, session in zip(requests, sessions):
            self.last_token_ids[self.slot_of[session]] = request.output_token_ids[-1]
"""
NO_PADDING = """    def __init__(self, *about):
        super().__init__(*about)
        self.context_lens.zero_()

    def forget"""
NEWCOMERS = "self.send_states({requests[b]: sessions[b] for b in joined})"
ROW = "a row names the blocks that its request holds now found table"
MISTAKES = [
    (KEPT, STAY, "", "found raised KeyError: 'pop from an empty set', at `self"),
    (KEPT, STAY + FREE, ALL_FREE, "has left and still has slot"),
    (KEPT, STAY, "        self.slot_of = {}\n", "a request keeps its slot found request"),
    (KEPT, "free.pop()", "len(self.slot_of) // 2", "a slot is one request's found slot"),
    (KEPT, "free.pop()", IN_TURN, ""),
    (KEPT, "range(self.padding_slot)", "range(1, self.padding_slot + 1)", "try Hand out the slots 0 to"),
    (KEPT, ASSIGN + MAPPING, MAPPING + ASSIGN, "of type InferenceSession, at `self.send_mapping"),
    (DIRTY, IS_DIRTY, "return joined or sorted(set().union(*changed))", ROW),
    (DIRTY, IS_DIRTY, "return range(len(sessions))", "block_tables was sent for request"),
    (DIRTY, IS_DIRTY, "return joined + [b for places in changed for b in places]", "send_rows was called"),
    (ONCE, NEWCOMERS, NEWCOMERS.replace("joined", "joined[1:]"), "a slot is what the host knows found"),
    (ONCE, NEWCOMERS, "self.send_states(dict(zip(requests, sessions)))", "was sent for request"),
    (ONCE, "sessions != self.mapped", "set(sessions) - set(self.mapped)", "rows after the batch are padding"),
    (ONCE, SENT, TOKENS, "last_token_ids was sent for request"),
    (ONCE, "self.slot_of.pop(session, None)", "del self.slot_of[session]", "at `del self.slot_of[s"),
    (ONCE, "    def forget", NO_PADDING, "context_lens[4] is 0, expected -1."),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(
    ROOT / "notebooks" / "06_device_resident_state.ipynb", MISTAKES
)


class AroundThePackages:
    """No `SlotState`."""

    def __init__(self, *about):
        self.inner = DeviceSlots(*about)

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_slots_of_another_class_pass():
    assert lab.start("06").check(block_tables=AroundThePackages).text.startswith("block_tables: right.")
