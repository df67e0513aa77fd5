"""Lesson 14's gate: likely mistakes in the hints are refused by what they break, and right ways pass."""

import pytest
from gate_tests import mistake_tests

from labkit.paths import ROOT

pytestmark = pytest.mark.slow

KEYS, FIND, KEEP, EVICT = range(4)
HASH = "hash((parent_key, token_ids))"
DIGEST = "__import__('hashlib').sha256(f'{parent_key} {token_ids}'.encode()).hexdigest()"
FOUND = "        found = []\n"
BY_TOKENS = f"""        blocks = [block for _, block in self.blocks_of(token_ids[:-1])]
        by_tokens = {{entry.token_ids: entry for entry in self}}
        return [by_tokens[block] for block in blocks if block in by_tokens]
{FOUND}"""
ANOTHER = "entry.parent is not parent or entry.token_ids != block"
STOP = "                return\n            parent = entry"
ANEW = "                entry = self.add(key, parent, block, block_id)\n            parent = entry"
MAY_GO = "            if entry not in parents and self.num_holders(entry) == 1:"
STOPS = """            if entry not in parents:
                if self.num_holders(entry) > 1:
                    return False"""
COLLIDES = "a key only says where to look found"
MISTAKES = [
    (KEYS, HASH, "hash(token_ids)", "with different beginnings, are both"),
    (KEYS, HASH, "parent_key, token_ids", "every key takes equally long to make found after 200 blocks"),
    (KEYS, HASH, DIGEST, ""),
    (KEYS, HASH, "__import__('hashlib').sha256((parent_key or b'') + str(token_ids).encode()).digest()", ""),
    (FIND, "token_ids[:-1]", "token_ids", "a text is never found found of [1, 2, 3, 4, 5, 6, 7, 8] 8 tokens"),
    (FIND, FOUND, BY_TOKENS, "the longest run of cached blocks is found found block 0 of"),
    (FIND, "entry.parent is not", "found and entry.parent is not", f"{COLLIDES} block 0 of [5, 6, 7, 8, 9]"),
    (KEEP, "self.entries.get(key) or ", "", "full blocks are kept, each once"),
    (KEEP, ANOTHER, "entry.token_ids != block", COLLIDES),
    (KEEP, STOP, ANEW, COLLIDES),
    (EVICT, "entry not in parents", "entry.token_ids not in [p and p.token_ids for p in parents]", "may go"),
    (EVICT, "return True", "return False", "evict_one says whether a block went found it returned False"),
    (EVICT, "for entry in self:", "for entry in [*self][::-1]:", "the least recently used block goes first"),
    (EVICT, MAY_GO, STOPS, "a block that is in use stays, and every other goes"),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(
    ROOT / "notebooks" / "14_block_prefix_cache.ipynb", MISTAKES
)
