"""Lesson 14's gate: caches of blocks pass in any form, and wrong ones are refused by what they break."""

import random
import re
from hashlib import sha256

import pytest
from gate_tests import gate_tests

from labkit import lab
from labkit.kvcache import BlockPrefix
from labkit.learn import not_attempted
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


class FindsOneByOne(BlockCache):
    def find(self, token_ids):
        yield from super().find(token_ids)


class TakesOut(BlockCache):
    def find(self, token_ids):
        return [self.entries.pop(entry.key) for entry in super().find(token_ids)]


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


class DropsTheOther(BlockCache):
    """Where a key is taken, the other text's block goes."""

    def keep(self, token_ids, block_ids):
        for key, block in self.blocks_of(token_ids):
            entry = self.entries.get(key)
            if entry is not None and entry.token_ids != block:
                self.drop(entry)
        super().keep(token_ids, block_ids)


class NeverEvicts(BlockCache):
    def evict_one(self):
        return False


class AlwaysTrue(BlockCache):
    def evict_one(self):
        super().evict_one()
        return True


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
    KeyOfLists: "a key can be a dict's: block_key(0, (1, 2, 3, 4)) is [0, 1, 2, 3, 4]",
    WithoutTheOneBefore: "with different beginnings, are both",
    Narrow: "different texts have different keys, nearly always",
    OrderOfBlocksLost: "of two blocks in one order and in the other the last key is",
    Nested: "every key takes equally long to make: after 200 blocks it holds all keys before it",
    DrawnAnew: "equal texts have equal keys",
    FindsAll: "a text is never found: of [1, 2, 3, 4, 5, 6, 7, 8] 8 tokens are found",
    GoesOnBehindAGap: "written for [5, 6, 7, 8, 5, 6, 7, 8], expected one for",
    FindsOneByOne: "`find` returns a list of entries, not",
    TakesOut: "`find` only looks: the entry of [1, 2, 3, 4], which it returned, is no longer in",
    ComparesTheParentsIds: "block 2 of [20, 21, 22, 23, 5, 6, 7, 8, 5, 5, 5, 5, 1] is found in block",
    traps.TrustsTheKey: "a key only says where to look: block 0 of [20, 21,",
    KeepsBlocksOfOthers: "a key only says where to look",
    KeepsWithoutTheParent: "where to look: the entry of [1, 2, 3, 4, 20, 21, 22, 23] has block",
    traps.KeepsTheLast: "each once: after [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] was kept",
    KeepsAllButTheLastToken: "after [1, 2, 3, 4, 5, 6, 7, 8] was kept, whose last token fills a block",
    KeepsAnew: "full blocks are kept, each once",
    DropsTheOther: "the entry of [1, 2, 3, 4] was dropped. Stop at a key that another text has.",
    traps.ParentsFirst: "a block goes after those that follow it: of 3 blocks of one text one was evicted",
    NeverEvicts: "evict_one says whether a block went: it returned False, expected True",
    AlwaysTrue: "evict_one says whether a block went: it returned True, expected False",
    AllAtOnce: "one block goes at a time: evict_one returned True, 3 of 3 entries are gone",
    AllLeavesAtOnce: "one block goes at a time: evict_one returned True, 3 of 4 entries are gone",
    DeepestFirst: "the least recently used block goes first",
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


class Tree:
    """Another way: no keys, but nodes that know the nodes behind them, in the order of last use."""

    watch_points = ("lookup", "insert", "evict_one")

    class Node:
        def __init__(self, parent, token_ids, block_id, start):
            self.parent, self.token_ids, self.block_id, self.start = parent, token_ids, block_id, start
            self.children, self.used = {}, 0

        block_ids_per_layer = property(lambda self: [[self.block_id]])
        num_tokens = property(lambda self: len(self.token_ids))
        text = property(lambda self: (self.parent.text if self.parent else ()) + self.token_ids)

    def __init__(self, kv_manager):
        self.manager, self.size, self.clock, self.num_evicted = kv_manager, kv_manager.block_size, 0, 0
        self.root = self.Node(None, (), None, 0)

    def __iter__(self):
        nodes = list(self.root.children.values())
        for node in nodes:
            nodes += node.children.values()
        return iter(nodes)

    def __len__(self):
        return len(list(iter(self)))

    def walk(self, token_ids):
        node, path = self.root, []
        for start in range(0, len(token_ids), self.size):
            node = node.children.get(tuple(token_ids[start : start + self.size]))
            if node is None:
                break
            path.append(node)
        self.clock += 1
        for node in path:
            node.used = self.clock
        return path

    def lookup(self, token_ids):
        path = self.walk(token_ids[:-1])
        return BlockPrefix([[n.block_id for n in path]], self.size * len(path)) if path else None

    def is_coming(self, token_ids, computing):
        return False

    def keep_text(self, token_ids, block_ids_per_layer):
        path = self.walk(token_ids)
        node = path[-1] if path else self.root
        for place in range(len(path), len(token_ids) // self.size):
            block = tuple(token_ids[place * self.size : (place + 1) * self.size])
            self.manager.share([block_ids_per_layer[0][place]])
            child = self.Node(node, block, block_ids_per_layer[0][place], place * self.size)
            child.used = self.clock
            node = node.children.setdefault(block, child)

    def insert(self, token_ids, block_ids_per_layer, last_logits=None):
        self.keep_text(token_ids, block_ids_per_layer)

    def forget(self, block_ids_per_layer):
        doomed = [node for node in self if node.block_id in block_ids_per_layer[0]]
        for node in doomed:
            for gone in [*self.below(node)][::-1]:
                self.drop(gone)

    def below(self, node):
        yield node
        for child in list(node.children.values()):
            yield from self.below(child)

    def drop(self, node):
        if node.parent.children.pop(node.token_ids, None):
            self.manager.free([node.block_id])
            self.num_evicted += 1

    def leaves(self):
        return [n for n in self if not n.children and self.manager.refcount(n.block_id) == 1]

    def can_free(self, num_blocks):
        idle = [all(self.manager.refcount(n.block_id) == 1 for n in self.below(node)) for node in self]
        return sum(idle) >= num_blocks

    def evict_one(self):
        leaves = self.leaves()
        if leaves:
            self.drop(min(leaves, key=lambda node: node.used))
        return bool(leaves)

    def clear(self):
        for node in [*self][::-1]:
            self.drop(node)


PATTERNS = {part: re.escape(words) for part, words in WRONG.items()}
test_wrong_parts, test_right_parts = gate_tests("14", "prefixes", PATTERNS, (Digest, Tree))


class NotWritten(BlockCache):
    def find(self, token_ids):
        not_attempted()


def test_what_is_not_there_and_what_raises_is_said(here):
    assert here.check(prefixes=NotWritten).text == "prefixes: not attempted yet."
    assert "raised TypeError" in here.check(prefixes=lambda: None).text
