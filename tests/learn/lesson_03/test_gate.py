"""Lesson 03's gate: likely mistakes in the hints are refused by what they break, and right ways pass."""

import pytest
from gate_tests import mistake_tests
from triton_marks import needs_triton

from labkit.paths import ROOT

pytestmark = [pytest.mark.slow, needs_triton]

DISPATCH, _, _, KERNEL = range(4)
GRID = """    def full_batch(self, k_cache, v_cache, key, value, blocks, slot):
        grid = (len(blocks), key.shape[1])"""
PREFIX = f"""    def is_full_batch(self, batch_idx, pos, batch_size):
        return list(batch_idx) == list(range(len(batch_idx))) and len(set(pos)) == 1

{GRID.replace("blocks),", "key),")}"""
INDEX, CALL = "        blocks = self.index(block_idx)", "        full_batch_kernel[grid](k_cache"
ASSIGN = """        for cache, new in ((k_cache, key), (v_cache, value)):
            cache[blocks.long(), :, slot] = new
        return
        full_batch_kernel[grid](k_cache"""
TOUCHES = "a kernel touches the elements of its tensors and nothing else"
MISTAKES = [
    (DISPATCH, INDEX, f"{INDEX}\n        self.index(pos)", "2 index tensors were made, expected at most 1"),
    (KERNEL, "k_cache_ptr + place, key, mask=d < D", "k_cache_ptr + place, key", "expected no change. try"),
    (KERNEL, "key_stride_h + d, mask=d < D", "key_stride_h + d", "reads 60 numbers from the first of"),
    (KERNEL, "block * stride_n", "block * stride_n * 3", f"must hold {TOUCHES}"),
    (KERNEL, "(len(blocks), key.shape[1])", "(len(blocks), key.shape[1], 2)", "no two programs write one"),
    (KERNEL, GRID, PREFIX, "reads 2 numbers from the first of blocks_ptr, [2]"),
    (KERNEL, "slot * stride_t", "slot * D", "heads lie side by side: take every stride from the tensor."),
    (KERNEL, ".to(tl.int64)", "", "is in block 0. try"),
    (KERNEL, "full_batch_kernel[grid]", "full_batch_kernel", "in square brackets: `kernel[grid]"),
    (KERNEL, "b * key_stride_b", "b * tl.num_programs(1) * D", "strides of their own"),
    (KERNEL, CALL, ASSIGN, ""),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(
    ROOT / "notebooks" / "03_triton_full_batch.ipynb", MISTAKES
)
