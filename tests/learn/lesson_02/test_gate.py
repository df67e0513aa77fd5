"""Lesson 02's gate: likely mistakes in the hints are refused by what they break, and right ways pass."""

import pytest
from gate_tests import mistake_tests

from labkit.paths import ROOT

pytestmark = pytest.mark.slow

FAST, ONE_WRITE, _ = range(3)
WRITE = "        self.kv_manager.write_batch(layer_idx, rows, block_idx, pos, keys, values)"
COUNT = "        self.count(last_ids)"
SWALLOWED = f"        try:\n    {WRITE}\n        except RuntimeError:\n            pass"
TAKEN_BACK = f"""{COUNT}
        try:
    {WRITE}
        except BaseException:
            for last_id, length in zip(last_ids, pos):
                self.kv_manager.set_length(last_id, length)
            raise"""
OF_ALL = "        self.write(layer_idx, range(len(lists)), lists, keys, values)"
EACH = "        for b in range(len(lists)):\n            self.write(layer_idx, [b], lists, keys, values)"
READY = """        for block_ids in lists:
            if not self.is_fast(block_ids):
                self.kv_manager.ready_block(layer_idx, block_ids)
"""
TWICE = """        slow = [b for b, block_ids in enumerate(lists) if not self.is_fast(block_ids)]
        fast = [b for b in range(len(lists)) if b not in slow]
        if fast:
            self.write(layer_idx, fast, lists, keys, values)
        if slow:
            for b in slow:
                self.kv_manager.ready_block(layer_idx, lists[b])
            self.write(layer_idx, slow, lists, keys, values)"""
HEAD = "(MyFastPath):\n    def append_layer(self, layer_idx, lists, keys, values):"
BY_TOKEN = f"""{HEAD.replace("MyFastPath", "LayerAppend")}
        for b, block_ids in enumerate(lists):
            self.kv_manager.append_token(layer_idx, block_ids, keys[b], values[b])
        return"""
RETURN = "return has_room and"
MISTAKES = [
    (FAST, f"{WRITE}\n{COUNT}", f"{COUNT}\n{WRITE}", "counted 8 tokens for request 0, expected 7."),
    (FAST, WRITE, SWALLOWED, "layer 0's write raised, and the append did not."),
    (FAST, WRITE, WRITE.replace("keys, values", "values, keys"), "its key there is the value of request"),
    (FAST, COUNT, f"{COUNT}\n        self.count(last_ids[:1])", "length is 5, expected 4."),
    (FAST, f"{RETURN} self.kv_manager.block_refcounts[last_id] == 1", "return has_room", "had 3 holders"),
    (FAST, RETURN, "return", "has slots 0 to 3. try A token is fast only if its block has room"),
    (FAST, RETURN, "return False and", "had 0 batched writes in a step of 4 requests whose last blocks all"),
    (FAST, "< self.kv_manager.block_size", "< self.kv_manager.block_size - 1", "1 batched writes of 3 rows"),
    (FAST, "block_refcounts[last_id]", "block_refcounts[block_ids[0]]", "had 1 batched writes of 1 rows"),
    (FAST, "write_batch(layer_idx", "write_batch(0", "layer 0 had 2 batched writes"),
    (FAST, f"{WRITE}\n{COUNT}", TAKEN_BACK, ""),
    (ONE_WRITE, OF_ALL, EACH, "had 4 batched writes of 4 rows in a step of 4 requests"),
    (ONE_WRITE, READY + OF_ALL, TWICE, "some of which take a block, expected 1 of all. try Make"),
    (ONE_WRITE, HEAD, BY_TOKEN, "whose last blocks all have room, expected 1. try A token is"),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(
    ROOT / "notebooks" / "02_batched_append.ipynb", MISTAKES
)
