"""Lesson 06's gate: slots that follow the host pass, and wrong ones are refused by what they break."""

import re

import pytest
import torch
from gate_tests import gate_tests

from labkit import lab
from labkit.engine.step.slots import DeviceSlots
from labkit.kernels.distribution import DTYPES, OFF, SamplingState
from labkit.learn.gates.resident import of_a_slot
from labkit.learn.lesson_06.gate import check_step
from labkit.learn.lesson_06.traps import LateRows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here():
    return lab.start("06")


class OneByOne:
    """Slots without staging: every number is assigned by itself."""

    def __init__(self, kv_manager, max_batch_size):
        T, M, S = kv_manager.num_tables, kv_manager.max_blocks_per_seq, max_batch_size + 1
        self.kv_manager, self.padding_slot = kv_manager, max_batch_size
        self.block_tables = torch.zeros(T, S, M, dtype=torch.int32)
        self.context_lens = torch.zeros(S, dtype=torch.int32)
        self.context_lens[max_batch_size] = -1
        self.last_token_ids = torch.zeros(S, dtype=torch.int64)
        self.sampling_state = SamplingState(
            *(torch.full((S,), off, dtype=dtype) for off, dtype in zip(OFF, DTYPES, strict=True))
        )
        self.slot_mapping = torch.full((max_batch_size,), max_batch_size)
        self.slot_of, self.mapped = {}, []

    def update(self, requests, sessions, changed):
        self.let_go([session for session in self.slot_of if session not in sessions])
        joined = [b for b, session in enumerate(sessions) if session not in self.slot_of]
        for b in joined:
            self.slot_of[sessions[b]] = self.free_slot()
            self.send_state(requests[b], sessions[b])
        if sessions != self.mapped:
            self.send_mapping(sessions)
        self.send_rows([sessions[b] for b in self.dirty(joined, changed)])

    def dirty(self, joined, changed):
        return sorted({*joined}.union(*changed))

    def free_slot(self):
        return next(slot for slot in range(self.padding_slot) if slot not in self.slot_of.values())

    def knows(self, session):
        return session in self.slot_of

    def let_go(self, sessions):
        self.forget(sessions)

    def forget(self, sessions):
        for session in sessions:
            self.slot_of.pop(session, None)
            self.mapped = []

    def send_mapping(self, sessions):
        self.slot_mapping.fill_(self.padding_slot)
        self.slot_mapping[: len(sessions)] = torch.tensor([self.slot_of[s] for s in sessions])
        self.mapped = sessions

    def send_state(self, request, session):
        slot = self.slot_of[session]
        for name, number in self.state(request, session).items():
            of_a_slot(self)[name][slot] = number

    def state(self, request, session):
        return {
            "context_lens": session.num_tokens,
            "last_token_ids": request.output_token_ids[-1],
            **request.sampling_state._asdict(),
        }

    def send_rows(self, sessions):
        for session in sessions:
            for table_idx, block_ids in enumerate(session.block_ids_per_layer):
                row = torch.tensor(block_ids) - self.offset(table_idx)
                self.block_tables[table_idx, self.slot_of[session], : len(row)] = row

    def offset(self, table_idx):
        return self.kv_manager.layer_offset(table_idx)

    def deliver(self):
        pass

    def discard(self):
        pass


class RowsOfThoseWhoJoinAlone(OneByOne):
    def dirty(self, joined, changed):
        return joined


class WithoutCopiedBlocks(OneByOne):
    """Looks at the number of blocks, which a copy-on-write does not change."""

    def send_rows(self, sessions):
        counts = self.__dict__.setdefault("counts", {})
        grown = [s for s in sessions if counts.get(s) != len(s.block_ids_per_layer[0])]
        counts.update({s: len(s.block_ids_per_layer[0]) for s in grown})
        super().send_rows(grown)


class GlobalIds(OneByOne):
    def offset(self, table_idx):
        return 0


class StaleSeed(OneByOne):
    def state(self, request, session):
        state = super().state(request, session)
        del state["seeds"]
        return state


class KeepsSlots(OneByOne):
    """Takes no slot back, and gives out whichever comes next."""

    def let_go(self, sessions):
        pass

    def free_slot(self):
        return len(self.slot_of) % self.padding_slot


class LooksForSlotsTooEarly(OneByOne):
    """Gives slots out before those of who left are taken back: there is none in a full batch."""

    def update(self, requests, sessions, changed):
        free = [slot for slot in range(self.padding_slot) if slot not in self.slot_of.values()]
        for b in (b for b, session in enumerate(sessions) if session not in self.slot_of):
            self.slot_of[sessions[b]] = free.pop()
            self.send_state(requests[b], sessions[b])
            self.send_rows([sessions[b]])
        super().update(requests, sessions, changed)


class ForgetsOnlyWhoHasASlot(OneByOne):
    def forget(self, sessions):
        for session in sessions:
            del self.slot_of[session]
            self.mapped = []


class SharesSlots(OneByOne):
    def free_slot(self):
        return (len(self.slot_of) + 1) // 2


class MovesUp(OneByOne):
    """A request's slot is its place in the batch; who is moved is sent anew, state and row."""

    def update(self, requests, sessions, changed):
        if sessions != self.mapped:
            self.slot_of = {}
        super().update(requests, sessions, changed)


class MappingOfNewcomersAlone(OneByOne):
    """Sends the mapping when somebody joins, and not when somebody leaves."""

    def send_mapping(self, sessions):
        if {*sessions} - self.__dict__.setdefault("seen", set()):
            super().send_mapping(sessions)
        self.seen |= {*sessions}


class SendsTokens(OneByOne):
    """Sends the last token of each request, which the device has made itself."""

    def update(self, requests, sessions, changed):
        super().update(requests, sessions, changed)
        for request, session in zip(requests, sessions, strict=True):
            self.last_token_ids[self.slot_of[session]] = request.output_token_ids[-1]


class PaddingOfLengthZero(OneByOne):
    def __init__(self, kv_manager, max_batch_size):
        super().__init__(kv_manager, max_batch_size)
        self.context_lens.zero_()


class RowsTwice(DeviceSlots):
    def update(self, requests, sessions, changed):
        super().update(requests, sessions, [()])
        rows = [sessions[b] for places in changed for b in places]
        if rows:
            self.send_rows(rows)


class MappingBeforeTheSlots(DeviceSlots):
    def update(self, requests, sessions, changed):
        self.send_mapping(sessions)
        super().update(requests, sessions, changed)


class HandsOutThePadding(OneByOne):
    def free_slot(self):
        return max(slot for slot in range(self.padding_slot + 1) if slot not in self.slot_of.values())


ROW = (
    r"a row names the blocks that its request holds now: table \d, request \d+ \(slot \d\), entry \d+ names "
)
STATE = r"a slot is what the host knows: {}\[\d\] is \S+ for request \d+, expected \S+\. Send it when"
SENT = r"only what changed is sent: {} was sent for {}, where nothing had changed"
WRONG = {
    GlobalIds: r"table 1, request 0 \(slot 0\), entry 0 names block 16, expected 0\.",
    StaleSeed: STATE.format("seeds"),
    KeepsSlots: r"slots of those who left are free again: request \d+ has left and still has slot \d",
    SharesSlots: r"a slot is one request's: slot \d has request \d+ and request \d+ \(row \d\)",
    LooksForSlotsTooEarly: r"slots of those who left are free again: where all slots were taken, the engine "
    r"raised IndexError: pop from empty list, at `.*free\.pop\(\)`\. Take back the slots of all "
    r".*\(In this: two",
    ForgetsOnlyWhoHasASlot: r"who is forgotten has no slot: `forget` of sessions that had none yet raised Ke",
    RowsTwice: r"what is sent goes once: send_rows was called for request \d+ twice in one call\. A request",
    MappingBeforeTheSlots: r"who is sent has a slot: send_mapping was called for request \d+, which has none",
    MovesUp: r"a request keeps its slot: request \d+ had slot \d in the last step and has slot \d "
    r"now\. A session",
    LateRows: ROW,
    HandsOutThePadding: r"is 2 for request 0, expected one of 0 to 1\. Hand out the slots 0 to 1 only",
    MappingOfNewcomersAlone: r"rows after the batch are padding: slot_mapping\[\d\] is \d in a step of \d",
    SendsTokens: SENT.format("last_token_ids", r"request \d+ \(slot \d\)"),
    PaddingOfLengthZero: r"the padding slot stays empty: context_lens\[4\] is 0, expected -1\. Nothing is",
}


class WithAnotherOrder(DeviceSlots):
    """Gives out the slots from the last."""

    def __init__(self, kv_manager, max_batch_size):
        super().__init__(kv_manager, max_batch_size)
        self._free.reverse()


RIGHT = (WithAnotherOrder, OneByOne)


test_wrong_parts, test_right_parts = gate_tests("06", "block_tables", WRONG, RIGHT)


# --- the steps before the whole part -----------------------------------------------------------------


class AllButTheRows(OneByOne):
    """Sends all but the rows in every step, to slots that stay."""

    def update(self, requests, sessions, changed):
        self.mapped = []
        for request, session in zip(requests, sessions, strict=True):
            if session in self.slot_of:
                self.send_state(request, session)
        super().update(requests, sessions, changed)


class AllButTheSlots(AllButTheRows):
    """Sends the rows, too."""

    def update(self, requests, sessions, changed):
        super().update(requests, sessions, [range(len(sessions))])


@pytest.mark.parametrize(
    ("number", "part"), [(1, AllButTheSlots), (1, AllButTheRows), (2, AllButTheRows), (2, OneByOne)]
)
def test_a_step_lets_be_sent_what_a_later_one_saves(here, number, part):
    assert check_step(number, here.build, part).text.startswith("block_tables: right.")


WRONG_STEPS = [
    (1, MovesUp, WRONG[MovesUp]),
    (1, SharesSlots, WRONG[SharesSlots]),
    (1, KeepsSlots, WRONG[KeepsSlots]),
    (2, AllButTheSlots, SENT.format("block_tables", r"request \d+ \(slot \d\)")),
    (2, RowsOfThoseWhoJoinAlone, ROW),
    (2, WithoutCopiedBlocks, ROW),
]


@pytest.mark.parametrize(("number", "part", "told"), WRONG_STEPS)
def test_a_step_refuses_what_it_is_about(here, number, part, told):
    report = check_step(number, here.build, part)
    assert not report.ok and re.search(f"^block_tables breaks a contract: {told}", report.text), report
