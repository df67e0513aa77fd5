"""Lesson 07's gate: likely mistakes in the hints are refused by what they break, and right ways pass."""

import pytest
from gate_tests import mistake_tests
from triton_marks import needs_triton

from labkit import lab
from labkit.kernels import paged_attention_append_plain
from labkit.paths import ROOT

pytestmark = [pytest.mark.slow, needs_triton]

TABLE, RESERVE, KERNEL = range(3)
LAYERS = "    def layers_of(self, table_idx):\n        return slice(None)"
FIRST_LAYER = """    copying = False

    def layers_of(self, table_idx):
        return 0 if self.copying else slice(None)

    def copy_on_write(self, layer_idx, block_id):
        self.copying = True
        try:
            return super().copy_on_write(layer_idx, block_id)
        finally:
            self.copying = False"""
FROM_ONE = "    def layer_offset(self, layer_idx):\n        return 1\n\n"
FROM_ONE += LAYERS.replace("slice(None)", "list(range(self.num_layers))")
READY = """            if self.append_takes_block(block_ids):
                self.ready_block(table_idx, block_ids)
                changed.append(b)
"""
COUNT = "            self.info(block_ids[-1]).length += 1"
EVERY_LAYER = f"{COUNT}\n            self.info(block_ids[-1]).length += self.num_layers - 1"
NEW_ALONE = READY.replace("changed.append(b)", "changed += [b] * (len(block_ids) > before)").replace(
    "                self.ready", "                before = len(block_ids)\n                self.ready"
)
EACH = """        for b, block_ids in enumerate(block_ids_list):
            if self.append_takes_block(block_ids):"""
IS_FULL = EACH.replace(
    "self.append_takes_block(block_ids)", "self.num_tokens(block_ids) == len(block_ids) * self.block_size"
)
HOLDER = """    def copy_on_write(self, layer_idx, block_id):
        self.block_refcounts[block_id] += 1
        return super().copy_on_write(layer_idx, block_id)

    def reserve"""
CALL = "launch(my_kernel, *tensors)"
UNPADDED = f"{CALL}.masked_fill((tensors[6][tensors[7]] < 0)[:, None, None], 0)"
MISTAKES = [
    (TABLE, "return 1", "return num_layers", "there are 2 tables for the gate's 2 layers, expected 1."),
    (TABLE, "slice(None)", "slice(0, 6)", "layers_of(0) is slice(0, 6, None) in a pool of 13"),
    (TABLE, LAYERS, FIRST_LAYER, "token 4 in layer 1. try A block id names a place in all"),
    (TABLE, LAYERS, FROM_ONE, ""),
    (RESERVE, "    def reserve", HOLDER, "after this one not every block is accounted for"),
    (RESERVE, COUNT, EVERY_LAYER, "(place 1): length is 2, expected 1. try Every block"),
    (RESERVE, READY + COUNT, f"{COUNT}\n{READY}", "try Make the block ready first"),
    (RESERVE, READY, NEW_ALONE, "A block that was replaced by its copy"),
    (RESERVE, EACH, IS_FULL, "a reserved block has one holder found block"),
    (KERNEL, ".to(tl.int64)", "", "and is in block 0. try `block * stride` needs 64 bits"),
    (KERNEL, "SIZE) * D + d", "SIZE) * 16 + d", "number 16 of the key in place"),
    (KERNEL, "        tl.store(k_cache_ptr + place, key)\n", "", "is nan, expected -0.158."),
    (KERNEL, "length % BLOCK_SIZE)", "(length + 1) % BLOCK_SIZE)", "number 0 of the key in place 1"),
    (KERNEL, "row_ptr + length // BLOCK_SIZE", "row_ptr", "place 1 of block 1, head 0, is nan"),
    (KERNEL, "h * BLOCK_SIZE + length", "length", "each head has its own part of a block"),
    (KERNEL, "tl.load(slots_ptr + b)", "b", "try The block is what the slot's table names at length"),
    (KERNEL, "v_cache_ptr + place, value", "v_cache_ptr + place, key", "number 0 of the value in place"),
    (KERNEL, "if length >= 0:", "if length >= -1:", "in place 3 of block 0, head 0"),
    (KERNEL, "key, value, length,", "key, value, length - 1,", "attention is that of the rung below found"),
    (KERNEL, CALL, UNPADDED, "A row of length -1 attends to itself."),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(
    ROOT / "notebooks" / "07_one_table_for_all_layers.ipynb", MISTAKES
)


def test_both_parts_pass_together_and_an_attention_may_be_no_kernel(shell):
    parts = {"layer_tables": shell.user_ns["MyReservation"], "kv_write": paged_attention_append_plain}
    assert lab.start("07").check(**parts).text.startswith("layer_tables with kv_write: right.")
