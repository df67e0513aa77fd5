"""Lesson 01's gate: cached block tables pass, and plausible wrong ones are refused by what they break."""

import re

import pytest
import torch

from labkit import lab
from labkit.kvcache import CachedBlockTables, RebuiltBlockTables
from labkit.kvcache.block_tables import BlockTables
from labkit.learn import not_attempted

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here():
    return lab.start("01")


class Rows(BlockTables):
    """Keeps a row per layer and session, and makes it anew when its signature has changed."""

    def __init__(self, kv_manager, max_batch_size):
        super().__init__(kv_manager, max_batch_size)
        self.rows = {}

    def key(self, session, row, layer_idx):
        return session, layer_idx

    def signature(self, block_ids):
        return len(block_ids), block_ids[-1]

    def physical(self, block_ids, layer_idx):
        return [block_id - self.kv_manager.layer_offset(layer_idx) for block_id in block_ids]

    def padded(self, physical, before):
        return physical + [0] * (self.kv_manager.max_blocks_per_seq - len(physical))

    def fill(self, block_tables_cpu, sessions):
        for layer_idx in range(self.kv_manager.num_layers):
            for b, session in enumerate(sessions):
                block_tables_cpu[layer_idx, b] = self.row(session, b, layer_idx)

    def row(self, session, b, layer_idx):
        block_ids, key = session.block_ids_per_layer[layer_idx], self.key(session, b, layer_idx)
        signature, row = self.rows.get(key, (None, None))
        if signature != self.signature(block_ids):
            row = torch.tensor(self.padded(self.physical(block_ids, layer_idx), row), dtype=torch.int32)
            self.rows[key] = self.signature(block_ids), row
        return row


class NumberOfBlocksAlone(Rows):
    def signature(self, block_ids):
        return len(block_ids)


class NeverMadeAnew(Rows):
    def signature(self, block_ids):
        return "made"


class FirstBlockAlone(Rows):
    def signature(self, block_ids):
        return block_ids[0]


class KeyedByPlaceInTheBatch(Rows):
    def key(self, session, row, layer_idx):
        return row, layer_idx

    def signature(self, block_ids):
        return len(block_ids)


class KeptByPlace(Rows):
    """Whoever has the same place, as many blocks and the same last one, has the same row."""

    def key(self, session, row, layer_idx):
        return row, layer_idx


class KeptByPlaceInMemory(Rows):
    def key(self, session, row, layer_idx):
        return id(session), layer_idx


class KeptByTheFirstBlock(Rows):
    def key(self, session, row, layer_idx):
        return session.block_ids_per_layer[0][0], layer_idx


class WritesOnlyNewRows(Rows):
    """Takes for right what stands in the table of a batch of the same size."""

    size = 0

    def fill(self, block_tables_cpu, sessions):
        for layer_idx in range(self.kv_manager.num_layers):
            for b, session in enumerate(sessions):
                before = self.rows.get(self.key(session, b, layer_idx))
                row = self.row(session, b, layer_idx)
                if self.rows[self.key(session, b, layer_idx)] is not before or len(sessions) != self.size:
                    block_tables_cpu[layer_idx, b] = row
        self.size = len(sessions)


class KeptByContent(Rows):
    """A right part: equal lists have equal rows, whoever has them."""

    def key(self, session, row, layer_idx):
        return layer_idx, tuple(session.block_ids_per_layer[layer_idx])


class GlobalIds(Rows):
    def physical(self, block_ids, layer_idx):
        return list(block_ids)


class OffsetOfLayerZero(Rows):
    def physical(self, block_ids, layer_idx):
        return [block_id - self.kv_manager.layer_offset(0) for block_id in block_ids]


class WithoutTheLastBlock(Rows):
    def physical(self, block_ids, layer_idx):
        return super().physical(block_ids, layer_idx)[: max(1, len(block_ids) - 1)]


class OneStepLate(Rows):
    """Hands out the row that it had, and makes the new one for the next time."""

    def row(self, session, b, layer_idx):
        _, before = self.rows.get(self.key(session, b, layer_idx), (None, None))
        row = super().row(session, b, layer_idx)
        return row if before is None else before


class FirstRequestAlone(Rows):
    def fill(self, block_tables_cpu, sessions):
        super().fill(block_tables_cpu, sessions[:1])


class Unwritten(BlockTables):
    def fill(self, block_tables_cpu, sessions):
        not_attempted()


class Misspelled(BlockTables):
    def fill(self, block_tables_cpu, sessions):
        for session in sessions:
            session.blocks_per_layer[0]


class OtherArguments(BlockTables):
    def __init__(self, kv_manager):
        super().__init__(kv_manager, 8)


NAMES_ANOTHER = (
    r"block_tables breaks a contract: a row names the blocks that its request holds now: layer \d, re"
)
WRONG = {
    NumberOfBlocksAlone: NAMES_ANOTHER,
    NeverMadeAnew: NAMES_ANOTHER,
    FirstBlockAlone: NAMES_ANOTHER,
    KeyedByPlaceInTheBatch: NAMES_ANOTHER,
    KeptByPlace: r"a row belongs to one session: layer 0, row \d, place \d names block \d, expected \d",
    KeptByPlaceInMemory: r"a row belongs to one session: layer 0, row 0, place \d names block \d, expected",
    KeptByTheFirstBlock: r"a row belongs to one session: layer 0, row 0, place 1 names block 6, expected 2",
    WritesOnlyNewRows: r"a row belongs to one session: .* take no row of the table for right because it was",
    GlobalIds: r"holds now: layer 1, request 0 \(row 0\), place 0 names block 12, expected 0\. A row must be",
    OffsetOfLayerZero: r"layer 1, request 0 \(row 0\), place 0 names block 12, expected 0",
    WithoutTheLastBlock: r"place 1 names block 0, expected \d",
    OneStepLate: NAMES_ANOTHER,
    FirstRequestAlone: r"\(row 1\), place 0 names block \d+, expected \d+",
    Unwritten: r"^block_tables: not attempted yet\.$",
    Misspelled: r"raised AttributeError: .*blocks_per_layer.*, at `session\.blocks_per_layer\[0\]`",
    OtherArguments: "raised TypeError: .*takes 2 positional arguments but 3 were given",
}
RIGHT = (CachedBlockTables, RebuiltBlockTables, Rows, KeptByContent)


@pytest.mark.parametrize("part", WRONG, ids=lambda part: part.__name__)
def test_a_wrong_part_is_refused_by_the_contract_that_it_breaks(here, part):
    report = here.check(block_tables=part)
    assert not report.ok and re.search(WRONG[part], report.text), report


@pytest.mark.parametrize("part", RIGHT, ids=lambda part: part.__name__)
def test_a_right_part_passes_in_whatever_clothes(here, part):
    report = here.check(block_tables=part)
    assert report.ok and report.text.startswith("block_tables: right."), report


def test_a_report_tells_the_moves_that_led_there(here):
    text = here.check(block_tables=NumberOfBlocksAlone).text
    assert "(After " in text and "a step" in text and "joins with" in text
