"""Lesson 07's gate: one table for all layers passes, and a kernel that stores; wrong ones are refused by what
they break."""

import re

import pytest
import torch
from gate_tests import gate_tests
from lesson_07_kernels import WrongKernel

from labkit import lab
from labkit.kernels import paged_attention_append_plain, triton_status
from labkit.kvcache import MutableInfoBlockManager
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


class AListOfLayers(OneTable):
    def layers_of(self, table_idx):
        return list(range(self.num_layers))


class SixLayers(OneTable):
    """Those of the lesson's model."""

    def layers_of(self, table_idx):
        return slice(0, 6)


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


class CountsFirst(OneTable):
    """Counts the token in the block that was the last one until then."""

    def reserve(self, table_idx, block_ids):
        self.info(block_ids[-1]).length += 1
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


class AsksAllBeforeItCopies(OneTable):
    """Of two that share a block, the second takes one, too, though it is alone by then."""

    def reserve_token_batch(self, table_idx, block_ids_list):
        taking = [b for b, ids in enumerate(block_ids_list) if self.append_takes_block(ids)]
        for b in taking:
            self.ready_block(table_idx, block_ids_list[b])
        for block_ids in block_ids_list:
            self.info(block_ids[-1]).length += 1
        self.append_paths["in_place"] += len(block_ids_list) - len(taking)
        return taking


class CountsIdsFromOne(OneTable):
    def layer_offset(self, layer_idx):
        return 1


class Unwritten(OneTable):
    def reserve_token_batch(self, table_idx, block_ids_list):
        not_attempted()


LAYER = (
    r"every layer has the keys and values of every token: the keys of token \d+ of request \d+ \(block \d+, "
)
COUNTED = r"a reservation counts one token: sequence \d had \d+ in its blocks and has \d+, "
CHANGED = r"tells which lists changed: sequence \d had the blocks \[[\d, ]+\] and has \[[\d, ]+\], but "
LAYERS = r"one table serves all layers: layers_of\(0\) is {}, and pool\[layers_of\(0\), 0\] is {}, expected "
WRONG = {
    MutableInfoBlockManager: r"one table serves all layers: there are 2 tables for the gate's 2 layers, ",
    SixLayers: LAYERS.format(r"slice\(0, 6, None\)", r"\(6, 2, 64, 16\)"),
    CopiesTheFirstLayer: LAYER
    + r"place \d\) belong to another token in layer 1\. A block id names a place in all layers",
    WritesIntoSharedBlocks: r"reserved block has one holder: block \d+, the last one of sequence \d, has 2 h",
    KeepsTheOldHolder: r"a step that fails leaves all as it was before: after this one not every block is",
    CountsEveryLayer: COUNTED + r"expected \d+\. A token has the same place in every layer",
    CountsFirst: r"a reserved token is in the last block: that of sequence \d, \d+, counts [05] tokens, "
    r"expected 1 to 4\. Make the block ready first",
    TellsOfNewBlocksAlone: CHANGED
    + r"\[\d?\] is returned, expected \[.*A block that was replaced by its copy",
    AsksAllBeforeItCopies: r"sequence 1 had the blocks \[0\] and has \[0\], but \[0, 1\] is returned, expect",
    Unwritten: r"^layer_tables: not attempted yet\.$",
}
RIGHT = (CountsIdsFromOne, AListOfLayers)


test_wrong_parts, test_right_parts = gate_tests("07", "layer_tables", WRONG, RIGHT)


# --- the kernel ------------------------------------------------------------------------------------------

KEY = r"each new key is at the end of its sequence: .* row 0: length {}, .*, the key of row {} in place "
FIRST = KEY.format(1, 0) + r"1 of block 2, head 0, number 0 of 16, is "
NOTHING = r"nan \(nothing was stored\)"
ELSEWHERE = r"nan \(no number; what was stored is in place {} of block {}, head {}\), expected "
WRONG_KERNELS = {
    "no keys": FIRST + NOTHING,
    "one too far": FIRST + ELSEWHERE.format(2, 2, 0),
    "first block": KEY.format(4, 0) + r"0 of block 5, .*" + ELSEWHERE.format(0, 2, 0),
    "one head": FIRST + r"-?\d\.\d+ \(number 0 of the key of row 0, head 1\), expected",
    "row of the batch": KEY.format(0, 1)
    + r"1 of block 1, .*The block is what the slot's table names at length",
    "keys as values": r"each new value is at the end .* \(number 0 of the key of row 0, head 0\), expected",
    "padding": r"nothing is stored but the new tokens: .*row 1: length -1.* A row of length -1 pads",
    "forgets the last": r"attention is that of the rung below: .*number 0 of head 0 of row 0 is",
}
needs_triton = pytest.mark.skipif(triton_status().mode == "off", reason=triton_status().reason)


@needs_triton
@pytest.mark.parametrize("wrong", WRONG_KERNELS)
def test_a_wrong_kernel_is_refused_by_the_contract_that_it_breaks(here, wrong):
    report = here.check(kv_write=WrongKernel(wrong))
    assert not report.ok and report.text.startswith("kv_write breaks a contract: ")
    assert re.search(WRONG_KERNELS[wrong], report.text), report


def on_a_copy(query, key, value, k_cache, v_cache, *rest):
    return paged_attention_append_plain(query, key, value, k_cache.clone(), v_cache.clone(), *rest)


def first_head_alone(*tensors):
    return paged_attention_append_plain(*tensors)[:, :1]


def nothing_for_padding(*tensors):
    *_, lengths, slots, _ = tensors
    return paged_attention_append_plain(*tensors).masked_fill((lengths[slots] < 0)[:, None, None], 0)


def one_request_at_a_time(query, key, value, k_cache, v_cache, tables, lengths, slots, longest):
    rows = [
        paged_attention_append_plain(
            query[[b]], key[[b]], value[[b]], k_cache, v_cache, tables, lengths, slots[[b]], longest
        )
        for b in range(len(slots))
    ]
    return torch.cat(rows)


WRONG_FUNCTIONS = {
    on_a_copy: NOTHING,
    first_head_alone: r"attention returns \[B, H, D\], \(1, 2, 16\), and not \(1, 1, 16\)\.",
    nothing_for_padding: r"of row 1 is 0\.000, .* A row of length -1 stores nothing, and still",
}


@pytest.mark.parametrize("part", WRONG_FUNCTIONS, ids=lambda part: part.__name__)
def test_a_wrong_function_is_refused_by_what_it_returns_or_leaves(here, part):
    report = here.check(kv_write=part)
    assert not report.ok and re.search(WRONG_FUNCTIONS[part], report.text), report


def test_a_right_attention_passes_that_is_no_kernel(here):
    report = here.check(kv_write=one_request_at_a_time)
    assert report.ok and report.text.startswith("kv_write: right."), report


def test_both_parts_pass_together(here):
    report = here.check(layer_tables=OneTable, kv_write=one_request_at_a_time)
    assert report.ok and report.text.startswith("layer_tables with kv_write: right."), report
