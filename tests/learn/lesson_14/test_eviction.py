"""What lesson 14's gate asks of eviction, of right and of wrong caches."""

import pytest
from exercise_helpers import refused_by
from helpers import build_of

from labkit.kvcache import BlockPrefixCache
from labkit.learn.exercise import BrokenContract
from labkit.learn.lesson_14 import traps
from labkit.learn.lesson_14.block_cache import BlockCache
from labkit.learn.lesson_14.eviction import (
    ends_go_first,
    least_recent_goes_first,
    what_is_used_stays,
)
from labkit.learn.lesson_14.pressure import AllAtOnce


class NeverEvicts(BlockCache):
    def evict_one(self):
        return False


class AlwaysTrue(BlockCache):
    def evict_one(self):
        super().evict_one()
        return True


class ForgetsWithoutFreeing(BlockCache):
    def drop(self, entry):
        del self.entries[entry.key]


class FirstComeFirstGone(BlockCache):
    """By age, not by last use."""

    def lookup(self, token_ids):
        order = dict(self.entries)
        prefix = super().lookup(token_ids)
        self.entries = order
        return prefix


class AllLeavesAtOnce(BlockCache):
    def evict_one(self):
        parents = {entry.parent for entry in self}
        leaves = [entry for entry in self if entry not in parents and self.num_holders(entry) == 1]
        for entry in leaves:
            self.drop(entry)
        return bool(leaves)


class DeepestFirst(BlockCache):
    def evict_one(self):
        entries = [entry for entry in self if self.num_holders(entry) == 1]
        if entries:
            self.drop(max(entries, key=lambda entry: entry.start))
        return bool(entries)


class StopsAtTheFirstInUse(BlockCache):
    def evict_one(self):
        parents = {entry.parent for entry in self}
        leaves = [entry for entry in self if entry not in parents]
        if not leaves or self.num_holders(leaves[0]) > 1:
            return False
        self.drop(leaves[0])
        return True


WRONG = {
    ends_go_first: {
        traps.ParentsFirst: "a block goes after those that follow it: of 3 blocks of one text one went",
        NeverEvicts: "evict_one says whether a block went: it returned False, expected True",
        AlwaysTrue: "evict_one says whether a block went: it returned True, expected False",
        AllAtOnce: "one block goes at a time: evict_one returned True, 3 of 3 entries went",
        ForgetsWithoutFreeing: "one block goes at a time",
    },
    least_recent_goes_first: {
        AllLeavesAtOnce: "one block goes at a time: evict_one returned True, 3 of 4 entries went",
        DeepestFirst: "the least recently used block goes first",
        FirstComeFirstGone: "the least recently used block goes first",
    },
    what_is_used_stays: {
        traps.TakesWhatIsUsed: "a block that is in use stays: 3 were evicted, and 1 became free.",
        StopsAtTheFirstInUse: "a block that is in use stays, and every other goes",
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
