"""What lesson 14's gate asks of keys and of lookups, of right and of wrong caches."""

import random
from hashlib import sha256

import pytest
from exercise_helpers import refused_by
from helpers import build_of

from labkit.kvcache import BlockPrefixCache
from labkit.learn.exercise import BrokenContract
from labkit.learn.lesson_14.block_cache import BlockCache
from labkit.learn.lesson_14.lookup import (
    keys_stand_for_texts,
    longest_run_is_found,
)


class WithoutTheOneBefore(BlockCache):
    def block_key(self, parent_key, token_ids):
        return hash(token_ids)


class Added(BlockCache):
    def block_key(self, parent_key, token_ids):
        return parent_key + sum(token_ids[i] * (i + 1) for i in range(len(token_ids)))


class OrderOfBlocksLost(BlockCache):
    def block_key(self, parent_key, token_ids):
        return parent_key ^ hash(token_ids)


class KeyOfLists(BlockCache):
    def block_key(self, parent_key, token_ids):
        return [parent_key, *token_ids]


class Narrow(BlockCache):
    def block_key(self, parent_key, token_ids):
        return hash((parent_key, token_ids)) % 1000003


class Nested(BlockCache):
    def block_key(self, parent_key, token_ids):
        return parent_key, token_ids


class Digest(BlockCache):
    def block_key(self, parent_key, token_ids):
        return sha256(f"{parent_key} {token_ids}".encode()).hexdigest()


class DrawnAnew(BlockCache):
    def block_key(self, parent_key, token_ids):
        return random.random()


class FindsAll(BlockCache):
    def find(self, token_ids):
        found = []
        for key, _ in self.blocks_of(token_ids):
            if key not in self.entries:
                break
            found.append(self.entries[key])
        return found


class GoesOnBehindAGap(BlockCache):
    def find(self, token_ids):
        blocks = [block for _, block in self.blocks_of(token_ids[:-1])]
        by_tokens = {entry.token_ids: entry for entry in self}
        return [by_tokens[block] for block in blocks if block in by_tokens]


class FindsOneBlock(BlockCache):
    def find(self, token_ids):
        return super().find(token_ids)[:1]


class FindsOneByOne(BlockCache):
    def find(self, token_ids):
        yield from super().find(token_ids)


class TakesOut(BlockCache):
    def find(self, token_ids):
        return [self.entries.pop(entry.key) for entry in super().find(token_ids)]


class KeepsOnePlaceLate(BlockCache):
    def keep(self, token_ids, block_ids):
        super().keep(token_ids, list(block_ids[1:]) + list(block_ids[:1]))


WRONG = {
    keys_stand_for_texts: {
        KeyOfLists: "a key can be a dict's: block_key(0, (1, 2, 3, 4)) is [0, 1, 2, 3, 4]",
        WithoutTheOneBefore: "with different beginnings, are both",
        Added: "different texts have different keys, nearly always",
        Narrow: "different texts have different keys, nearly always",
        OrderOfBlocksLost: "of two blocks in one order and in the other the last key is",
        Nested: "a key takes as long to make for every block: after 200 blocks it holds all keys before it",
        DrawnAnew: "equal texts have equal keys",
    },
    longest_run_is_found: {
        FindsAll: "a text is never found: of [1, 2, 3, 4, 5, 6, 7, 8] 8 tokens are found",
        GoesOnBehindAGap: "written for [5, 6, 7, 8, 5, 6, 7, 8], expected one for",
        FindsOneBlock: "the longest run of cached blocks is found",
        FindsOneByOne: "`find` returns a list of entries, not",
        TakesOut: "`find` only looks: the entry of [1, 2, 3, 4], which it returned, is no longer in",
        KeepsOnePlaceLate: "which was written for",
    },
}


@refused_by(WRONG)
def test_a_wrong_cache_is_refused_by_what_it_breaks(trial, part, words):
    with pytest.raises(BrokenContract, match=words):
        trial(build_of("14", prefixes=part))


@pytest.mark.parametrize("part", [BlockPrefixCache, BlockCache, Digest])
@pytest.mark.parametrize("trial", WRONG)
def test_a_right_cache_passes(trial, part):
    trial(build_of("14", prefixes=part))
