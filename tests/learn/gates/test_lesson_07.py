"""Lesson 07's gate: one table for all layers passes, and wrong ones are refused by what they break."""

import re

import pytest

from labkit import lab
from labkit.kvcache import MutableInfoBlockManager, OneTableBlockManager
from labkit.learn import not_attempted

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here():
    return lab.start("07")


class OneTable(MutableInfoBlockManager):
    """Makes room by asking for each sequence's block anew."""

    @staticmethod
    def count_tables(num_layers):
        return 1

    def layers_of(self, table_idx):
        return slice(0, self.num_layers)

    def reserve_token_batch(self, table_idx, block_ids_list):
        changed = [b for b, block_ids in enumerate(block_ids_list) if self.reserve(table_idx, block_ids)]
        self.append_paths["in_place"] += len(block_ids_list) - len(changed)
        return changed

    def reserve(self, table_idx, block_ids):
        takes_block = self.append_takes_block(block_ids)
        if takes_block:
            self.ready_block(table_idx, block_ids)
        self.info(block_ids[-1]).length += 1
        return takes_block


class FirstLayerAlone(OneTable):
    def layers_of(self, table_idx):
        return 0


class AllButTheLastLayer(OneTable):
    def layers_of(self, table_idx):
        return slice(0, self.num_layers - 1)

    def append_prompt(self, layer_idx, block_ids, keys, values):
        super().append_prompt(
            layer_idx, block_ids, keys[: self.num_layers - 1], values[: self.num_layers - 1]
        )


class CopiesTheFirstLayer(OneTable):
    """A copy-on-write of one layer's keys and values."""

    copying = False

    def layers_of(self, table_idx):
        return 0 if self.copying else super().layers_of(table_idx)

    def copy_on_write(self, layer_idx, block_id):
        self.copying = True
        try:
            return super().copy_on_write(layer_idx, block_id)
        finally:
            self.copying = False


class WritesIntoSharedBlocks(OneTable):
    def append_takes_block(self, block_ids):
        return not block_ids or self.info(block_ids[-1]).length == self.block_size


class KeepsTheOldHolder(OneTable):
    """A copy-on-write after which the old block has one holder too many."""

    def copy_on_write(self, layer_idx, block_id):
        self.block_refcounts[block_id] += 1
        return super().copy_on_write(layer_idx, block_id)


class CountsEveryLayer(OneTable):
    def reserve(self, table_idx, block_ids):
        changed = super().reserve(table_idx, block_ids)
        last = self.info(block_ids[-1])
        last.length = min(last.length + self.num_layers - 1, self.block_size)
        return changed


class CountsNothing(OneTable):
    def reserve(self, table_idx, block_ids):
        takes_block = self.append_takes_block(block_ids)
        if takes_block:
            self.ready_block(table_idx, block_ids)
        return takes_block


class TellsOfNewBlocksAlone(OneTable):
    """Says nothing of a block that was replaced by a copy."""

    def reserve(self, table_idx, block_ids):
        num_blocks = len(block_ids)
        super().reserve(table_idx, block_ids)
        return len(block_ids) > num_blocks


class TellsNothing(OneTable):
    def reserve_token_batch(self, table_idx, block_ids_list):
        super().reserve_token_batch(table_idx, block_ids_list)
        return []


class TellsAll(OneTable):
    def reserve_token_batch(self, table_idx, block_ids_list):
        super().reserve_token_batch(table_idx, block_ids_list)
        return list(range(len(block_ids_list)))


class LosesABlock(OneTable):
    def free(self, block_ids):
        super().free(block_ids[:-1])
        block_ids.clear()


class CountsIdsFromOne(OneTable):
    def layer_offset(self, layer_idx):
        return 1


class Unwritten(OneTable):
    def reserve_token_batch(self, table_idx, block_ids_list):
        not_attempted()


class Misspelled(OneTable):
    def reserve_token_batch(self, table_idx, block_ids_list):
        return self.reserve_batch(block_ids_list)


LAYER = (
    r"every layer has the keys and values of every token: the keys of token \d+ of request \d+ \(block \d+, "
)
COUNTED = r"a reservation counts one token: sequence \d had \d+ in its blocks and has \d+, "
CHANGED = r"tells which lists changed: sequence \d had the blocks \[[\d, ]+\] and has \[[\d, ]+\], but "
WRONG = {
    MutableInfoBlockManager: r"one table serves all layers: there are 2 tables, expected 1\. count_tables",
    FirstLayerAlone: LAYER + r"place 0\) are another's in layer 1\. A block id names a place in all layers",
    AllButTheLastLayer: LAYER + r"place 0\) are another's in layer 1\.",
    CopiesTheFirstLayer: LAYER + r"place \d\) are another's in layer 1\.",
    WritesIntoSharedBlocks: r"a reserved block has one holder: the last block of sequence \d, \d+, has 2\.",
    KeepsTheOldHolder: r"a step that fails leaves all as it was before: after this one not every block is",
    LosesABlock: r"every block is accounted for: ",
    CountsEveryLayer: COUNTED + r"expected \d+\. A token has the same place in every layer",
    CountsNothing: COUNTED,
    TellsOfNewBlocksAlone: CHANGED + r"\[\d?\] is returned\. A block that was replaced by its copy",
    TellsNothing: CHANGED,
    TellsAll: CHANGED,
    Unwritten: r"^layer_tables: not attempted yet\.$",
    Misspelled: r"raised AttributeError: .*, at `return self\.reserve_batch\(block_ids_list\)`",
}
RIGHT = (OneTableBlockManager, OneTable, CountsIdsFromOne)


@pytest.mark.parametrize("part", WRONG, ids=lambda part: part.__name__)
def test_a_wrong_part_is_refused_by_the_contract_that_it_breaks(here, part):
    report = here.check(layer_tables=part)
    assert not report.ok and re.search(WRONG[part], report.text), report


@pytest.mark.parametrize("part", RIGHT, ids=lambda part: part.__name__)
def test_a_right_part_passes_in_whatever_clothes(here, part):
    report = here.check(layer_tables=part)
    assert report.ok and report.text.startswith("layer_tables: right."), report
