"""Lesson 14's gate: caches of blocks pass in any form, and wrong ones are refused by what they break."""

import pytest

from labkit import lab
from labkit.kvcache import BlockPrefix, BlockPrefixCache
from labkit.learn import not_attempted
from labkit.learn.lesson_14 import traps
from labkit.learn.lesson_14.block_cache import BlockCache

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here():
    return lab.start("14")


WRONG = {  # what each of the gate's trials refuses: test_lookup.py, test_entries.py, test_eviction.py
    traps.TrustsTheKey: "a key only says where to look: block 0 of [20, 21,",
    traps.KeepsTheLast: "full blocks are kept, each once: after [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] was kept",
    traps.ParentsFirst: "a block goes after those that follow it: of 3 blocks of one text one went",
    traps.TakesWhatIsUsed: "a block that is in use stays: 3 were evicted, and 1 became free.",
}


@pytest.mark.parametrize("part", WRONG, ids=lambda part: part.__name__)
def test_a_wrong_cache_is_refused_by_what_it_breaks(here, part):
    report = here.check(prefixes=part)
    assert not report.ok and WRONG[part] in report.text, report.text


class LateInASchedule(BlockCache):
    """Right until it has evicted six blocks; then it goes on with the parents."""

    def evict_one(self):
        if self.num_evicted < 6:
            return super().evict_one()
        return traps.ParentsFirst.evict_one(self)


def test_what_only_a_schedule_finds_is_told_with_its_moves(here):
    text = here.check(prefixes=LateInASchedule).text
    assert "every entry can be found: the entry of [" in text and "other moves and this" in text


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


@pytest.mark.parametrize("part", [BlockPrefixCache, BlockCache, Tree], ids=lambda part: part.__name__)
def test_right_caches_pass_in_any_form(here, part):
    report = here.check(prefixes=part)
    assert report.ok, report.text
    assert report.text == "prefixes: right. 3 random schedules, the rung below's text and transformers'."


class NotWritten(BlockCache):
    def find(self, token_ids):
        not_attempted()


def test_what_is_not_there_and_what_raises_is_said(here):
    assert here.check(prefixes=NotWritten).text == "prefixes: not attempted yet."
    assert "raised TypeError" in here.check(prefixes=lambda: None).text
