"""Lesson 14's gate: caches of blocks pass in any form, and wrong ones are refused by what they break."""

import random
import re
from hashlib import sha256

import pytest
from gate_tests import gate_tests

from labkit import lab
from labkit.learn.lesson_14 import traps
from labkit.learn.lesson_14.block_cache import BlockCache
from labkit.learn.lesson_14.counts import AllAtOnce

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here():
    return lab.start("14")


class WithoutTheOneBefore(BlockCache):
    def block_key(self, parent_key, token_ids):
        return hash(token_ids)


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


class FindsOneByOne(BlockCache):
    def find(self, token_ids):
        yield from super().find(token_ids)


class TakesOut(BlockCache):
    def find(self, token_ids):
        return [self.entries.pop(entry.key) for entry in super().find(token_ids)]


class KeepsAnew(BlockCache):
    """Replaces the entry of an equal block, and never lets go of the one before."""

    def keep(self, token_ids, block_ids):
        parent = None
        for (key, block), block_id in zip(self.blocks_of(token_ids), block_ids, strict=False):
            if len(block) < self.block_size:
                return
            entry = self.entries.get(key)
            if entry is not None and self.is_another(entry, parent, block):
                if not self.gives_way(entry):
                    return
                entry = None
            parent = entry or self.add(key, parent, block, block_id)

    def is_another(self, entry, parent, block):
        return True

    def gives_way(self, entry):
        return True


class KeepsBehindAnotherText(KeepsAnew):
    def is_another(self, entry, parent, block):
        return entry.token_ids != block

    def gives_way(self, entry):
        return False


class ReplacesAnotherText(KeepsAnew):
    def is_another(self, entry, parent, block):
        return entry.token_ids != block or entry.parent is not parent


class DropsAnotherText(ReplacesAnotherText):
    def gives_way(self, entry):
        self.drop(entry)
        return True


class NeverEvicts(BlockCache):
    def evict_one(self):
        return False


class FirstComeFirstGone(BlockCache):
    """By age, not by last use."""

    def lookup(self, token_ids):
        order = dict(self.entries)
        prefix = super().lookup(token_ids)
        self.entries = order
        return prefix


class StopsAtTheFirstInUse(BlockCache):
    def evict_one(self):
        parents = {entry.parent for entry in self}
        leaves = [entry for entry in self if entry not in parents]
        if not leaves or self.num_holders(leaves[0]) > 1:
            return False
        self.drop(leaves[0])
        return True


WRONG = {
    KeyOfLists: "a key can be a dict's: block_key(0, (1, 2, 3, 4)) is [0, 1, 2, 3, 4]",
    WithoutTheOneBefore: "with different beginnings, are both",
    Narrow: "different texts have different keys, nearly always",
    Nested: "every key takes equally long to make: after 200 blocks it holds all keys before it",
    DrawnAnew: "equal texts have equal keys",
    FindsAll: "a text is never found: of [1, 2, 3, 4, 5, 6, 7, 8] 8 tokens are found",
    GoesOnBehindAGap: "written for [5, 6, 7, 8, 5, 6, 7, 8], expected one for",
    FindsOneByOne: "`find` returns a list of entries, not",
    TakesOut: "`find` only looks: the entry of [1, 2, 3, 4], which it returned, is no longer in",
    traps.TrustsTheKey: "a key only says where to look: block 0 of [20, 21,",
    traps.KeepsTheLast: "each once: after [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] was kept",
    KeepsAnew: "full blocks are kept, each once",
    KeepsBehindAnotherText: "a key only says where to look",
    ReplacesAnotherText: "a key only says where to look",
    DropsAnotherText: "a key only says where to look",
    traps.ParentsFirst: "a block goes after those that follow it: of 3 blocks of one text one was evicted",
    NeverEvicts: "evict_one says whether a block went: it returned False, expected True",
    AllAtOnce: "one block goes at a time: evict_one returned True, 3 of 3 entries are gone",
    FirstComeFirstGone: "the least recently used block goes first",
    traps.TakesWhatIsUsed: "a block that is in use stays: 3 were evicted, and 1 became free.",
    StopsAtTheFirstInUse: "a block that is in use stays, and every other goes",
}


class LateInASchedule(BlockCache):
    """Right until it has evicted six blocks; then it goes on with the parents."""

    def evict_one(self):
        if self.num_evicted < 6:
            return super().evict_one()
        return traps.ParentsFirst.evict_one(self)


def test_what_only_a_schedule_finds_is_told_with_its_moves(here):
    text = here.check(prefixes=LateInASchedule).text
    assert "every entry can be found: there is an entry of [" in text and "other moves and this" in text


PATTERNS = {part: re.escape(words) for part, words in WRONG.items()}
test_wrong_parts, test_right_parts = gate_tests("14", "prefixes", PATTERNS, (Digest,))
