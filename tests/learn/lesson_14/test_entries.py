"""What lesson 14's gate asks of entries, of right and of wrong caches."""

import pytest
from exercise_helpers import refused_by
from helpers import build_of

from labkit.kvcache import BlockPrefixCache, CachedBlock
from labkit.learn.exercise import BrokenContract
from labkit.learn.lesson_14 import traps
from labkit.learn.lesson_14.block_cache import BlockCache
from labkit.learn.lesson_14.entries import (
    equal_blocks_are_not_mixed,
    full_blocks_are_kept,
    others_stay,
    texts_are_not_mixed,
)


class ComparesTheParentsIds(BlockCache):
    """Not the entry before itself: another text's may have the same token ids."""

    def find(self, token_ids):
        found = []
        for key, block in self.blocks_of(token_ids[:-1]):
            entry, before = self.entries.get(key), found[-1].token_ids if found else None
            if entry is None or entry.token_ids != block:
                break
            if (entry.parent.token_ids if entry.parent else None) != before:
                break
            found.append(entry)
        return found


class KeepsAllButTheLastToken(BlockCache):
    def keep(self, token_ids, block_ids):
        super().keep(token_ids[:-1], block_ids)


class KeepsBlocksOfOthers(BlockCache):
    """Where a key is taken, it goes on behind the other text's block."""

    def keep(self, token_ids, block_ids):
        parent = None
        for (key, block), block_id in zip(self.blocks_of(token_ids), block_ids, strict=False):
            if len(block) < self.block_size:
                return
            parent = self.entries.get(key) or self.add(key, parent, block, block_id)


class KeepsWithoutTheParent(BlockCache):
    """Where an entry has this block's token ids, it goes on behind it, whatever comes before."""

    def keep(self, token_ids, block_ids):
        parent = None
        for (key, block), block_id in zip(self.blocks_of(token_ids), block_ids, strict=False):
            if len(block) < self.block_size:
                return
            entry = self.entries.get(key) or self.add(key, parent, block, block_id)
            if entry.token_ids != block:
                return
            parent = entry


class KeepsAnew(BlockCache):
    """Replaces the entry of an equal block, and never lets go of the one before."""

    def keep(self, token_ids, block_ids):
        parent = None
        for (key, block), block_id in zip(self.blocks_of(token_ids), block_ids, strict=False):
            if len(block) < self.block_size:
                return
            parent = self.add(key, parent, block, block_id)


class HoldsNoBlock(BlockCache):
    def add(self, key, parent, token_ids, block_id):
        start = 0 if parent is None else parent.start + parent.num_tokens
        entry = self.entries[key] = CachedBlock(key, parent, token_ids, block_id, start)
        return entry


class DropsTheOther(BlockCache):
    """Where a key is taken, the other text's block goes."""

    def keep(self, token_ids, block_ids):
        for key, block in self.blocks_of(token_ids):
            entry = self.entries.get(key)
            if entry is not None and entry.token_ids != block:
                self.drop(entry)
        super().keep(token_ids, block_ids)


WRONG = {
    texts_are_not_mixed: {
        ComparesTheParentsIds: "block 2 of [20, 21, 22, 23, 5, 6, 7, 8, 5, 5, 5, 5, 1] is found in block",
        traps.TrustsTheKey: "a key only says where to look: block 0 of [20, 21,",
        KeepsBlocksOfOthers: "a key only says where to look",
    },
    equal_blocks_are_not_mixed: {
        KeepsWithoutTheParent: "where to look: the entry of [1, 2, 3, 4, 20, 21, 22, 23] has block",
    },
    full_blocks_are_kept: {
        traps.KeepsTheLast: "each once: after [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] was kept",
        KeepsAllButTheLastToken: "after [1, 2, 3, 4, 5, 6, 7, 8] was kept, whose last token fills a block",
        KeepsAnew: "full blocks are kept, each once",
        HoldsNoBlock: "reference counts differ from holders",
    },
    others_stay: {
        DropsTheOther: "the entry of [1, 2, 3, 4] went. Stop at a key that another text has.",
    },
}


@refused_by(WRONG)
def test_a_wrong_cache_is_refused_by_what_it_breaks(trial, part, words):
    with pytest.raises(BrokenContract, match=words):
        trial(build_of("14", prefixes=part))


@pytest.mark.parametrize("part", [BlockPrefixCache, BlockCache])
@pytest.mark.parametrize("trial", WRONG)
def test_a_right_cache_passes(trial, part):
    trial(build_of("14", prefixes=part))
