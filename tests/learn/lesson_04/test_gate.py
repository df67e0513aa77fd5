"""Lesson 04's gate: likely mistakes in the hints are refused by what they break, and right ways pass."""

import pytest
from gate_tests import mistake_tests
from triton_marks import needs_triton

from labkit.paths import ROOT

pytestmark = [pytest.mark.slow, needs_triton]

RULE, KERNEL, KEPT = range(3)
CALL = "        write_identity_pos(k_cache, v_cache, key, value, blocks, slots)"
LOOP = """        for b, (block, slot) in enumerate(zip(blocks.tolist(), slots.tolist())):
            k_cache[block, :, slot], v_cache[block, :, slot] = key[b], value[b]"""
MISTAKES = [
    (RULE, "len(batch_idx) == len(key) and ", "", "a part of the batch"),
    (RULE, " and len(set(pos)) > 1", "", "it returned 'identity_pos', expected 'full_batch'."),
    (RULE, CALL, f"        self.index('rows', range(len(key)))\n{CALL}", "3 index tensors were made,"),
    (RULE, CALL, LOOP, ""),
    (KEPT, "self.kept[name][0] != numbers", "sum(self.kept[name][0]) != sum(numbers)", "kept from another"),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(
    ROOT / "notebooks" / "04_identity_pos.ipynb", MISTAKES
)
