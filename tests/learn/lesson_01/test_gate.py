"""Lesson 01's gate: cached block tables pass, and plausible wrong ones are refused by what they break."""

from weakref import WeakKeyDictionary

import pytest
import torch
from gate_tests import gate_tests

from labkit import lab
from labkit.kvcache.block_tables import BlockTables

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here():
    return lab.start("01")


class Rows(BlockTables):
    """Keeps a row per layer and session, and makes it again when its signature has changed."""

    def __init__(self, kv_manager, max_batch_size):
        super().__init__(kv_manager, max_batch_size)
        self.rows = WeakKeyDictionary()

    def kept(self, session):
        return self.rows.setdefault(session, {})

    def signature(self, block_ids):
        return len(block_ids), block_ids[-1]

    def physical(self, block_ids, layer_idx):
        return [block_id - self.kv_manager.layer_offset(layer_idx) for block_id in block_ids]

    def padding(self, length):
        return [0] * length

    def fill(self, block_tables_cpu, sessions):
        for layer_idx in range(self.kv_manager.num_layers):
            for b, session in enumerate(sessions):
                block_tables_cpu[layer_idx, b] = self.row(session, layer_idx)

    def row(self, session, layer_idx):
        block_ids, kept = session.block_ids_per_layer[layer_idx], self.kept(session)
        signature, row = kept.get(layer_idx, (None, None))
        if signature != self.signature(block_ids):
            row = self.physical(block_ids, layer_idx)
            row = torch.tensor(row + self.padding(self.kv_manager.max_blocks_per_seq - len(row)))
            kept[layer_idx] = self.signature(block_ids), row
        return row


class NumberOfBlocksAlone(Rows):
    def signature(self, block_ids):
        return len(block_ids)


class GlobalIds(Rows):
    def physical(self, block_ids, layer_idx):
        return list(block_ids)


class PaddedWithMinusOne(Rows):
    def padding(self, length):
        return [-1] * length


class WritesOnlyNewRows(Rows):
    """Takes for right what stands in the table of a batch of the same size."""

    size = 0

    def fill(self, block_tables_cpu, sessions):
        for layer_idx in range(self.kv_manager.num_layers):
            for b, session in enumerate(sessions):
                before = self.kept(session).get(layer_idx)
                row = self.row(session, layer_idx)
                if self.kept(session)[layer_idx] is not before or len(sessions) != self.size:
                    block_tables_cpu[layer_idx, b] = row
        self.size = len(sessions)


class KeepsSessionsThatEnded(Rows):
    def __init__(self, *about):
        super().__init__(*about)
        self.rows = {}


class KeptByContent(Rows):
    """A right part: equal lists have equal rows, whoever has them."""

    def __init__(self, *about):
        super().__init__(*about)
        self.by_blocks = {}

    def kept(self, session):
        return self.by_blocks.setdefault(tuple(session.block_ids_per_layer[0]), {})


STALE = r"a row names the blocks that its request holds now: layer \d, .* again when its list has changed"
WRONG = {
    NumberOfBlocksAlone: STALE,
    GlobalIds: r"layer 1, request 0 \(row 0\), entry 0 names block 12, expected 0\. .* Subtract `offset`\.",
    PaddedWithMinusOne: r"entry \d names block -1, expected 0\. The request holds \d blocks; .* padding, and",
    WritesOnlyNewRows: r"a row belongs to one session: .* take no row of the table for right because it was",
    KeepsSessionsThatEnded: r"a session that has ended is forgotten: 4 of 4 that ended are still held, with",
}
RIGHT = (Rows, KeptByContent)


test_wrong_parts, test_right_parts = gate_tests("01", "block_tables", WRONG, RIGHT)


def test_a_report_tells_the_moves_that_led_there(here):
    text = here.check(block_tables=NumberOfBlocksAlone).text
    assert "(After " in text and "a step" in text and "joins with" in text
