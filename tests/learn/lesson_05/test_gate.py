"""Lesson 05's gate: likely mistakes in the hints are refused by what they break, and right ways pass."""

import pytest
from gate_tests import mistake_tests

from labkit.paths import ROOT

pytestmark = pytest.mark.slow

_, APPEND, FAST = range(3)
WRITE = "        self.write_batch(layer_idx, range(len(infos)), block_idx, pos, key_new, value_new)\n"
COUNT = """        for info in infos:  # after the write: a length is never ahead of the data
            info.length += 1"""
PUT_BACK = f"""{COUNT}
        for ids in block_ids_list:
            self.block_infos[ids[-1]] = self.block_infos[ids[-1]]"""
MISTAKES = [
    (APPEND, WRITE + COUNT, f"{COUNT}\n{WRITE}", "layer 0 counted 8 tokens for request 0, expected 7."),
    (APPEND, COUNT, PUT_BACK, "expected for none"),
    (FAST, '                self.append_paths["in_place"] += 1', "                pass", "appended 8 tokens"),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(
    ROOT / "notebooks" / "05_mutable_kv_block_info.ipynb", MISTAKES
)
