"""The base of a reader's cache: as the package's, block for block."""

import pytest

from labkit.kvcache import BlockPrefixCache
from labkit.learn.lesson_14.block_cache import BlockCache
from labkit.learn.lesson_14.counts import come_and_go, pool


@pytest.mark.parametrize("num_blocks", [24, 200])
def test_it_finds_and_keeps_what_the_package_s_does_while_there_is_room(num_blocks):
    managers = [pool(num_blocks, 16) for _ in range(2)]
    caches = [part(manager) for part, manager in zip((BlockCache, BlockPrefixCache), managers, strict=True)]
    systems = [range(1000 * n, 1000 * n + 128) for n in ((0, 1, 0, 2, 0) if num_blocks == 200 else (0, 1, 0))]
    texts = [(*system, *range(-20 * n, -20 * n - 20, -1)) for n, system in enumerate(systems)]
    for text in texts:
        found = {come_and_go(*pair, text) for pair in zip(managers, caches, strict=True)}
        assert len(found) == 1
    assert {e.text for e in caches[0]} == {e.text for e in caches[1]}
    assert caches[0].num_evicted == caches[1].num_evicted
    for manager, cache in zip(managers, caches, strict=True):
        manager.check_integrity(cache)


def cached(*texts):
    manager = pool(16, 4)
    cache = BlockCache(manager)
    for text in texts:
        come_and_go(manager, cache, text)
    return cache


def test_a_text_waits_for_a_block_that_is_being_computed_unless_it_has_its_last_token():
    cache = cached((1, 2, 3, 4, 9))
    text = (1, 2, 3, 4, 5, 6, 7, 8, 0)
    assert cache.is_coming(text, [(7,), (1, 2, 3, 4, 5, 6, 7, 8)])
    assert not cache.is_coming(text, [(1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 9, 6, 7, 8)])
    assert not cache.is_coming(text[:8], [text])


def test_to_forget_blocks_drops_all_that_follow_and_frees_them():
    cache = cached((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 4, 0, 0, 0, 0))
    first, second, _ = sorted(cache, key=lambda entry: (entry.start, -entry.token_ids[0]))
    cache.forget([[second.block_id]])
    assert len(cache) == 2 and cache.kv_manager.num_free_blocks == 14
    cache.forget([[first.block_id]])
    assert len(cache) == 0 and cache.kv_manager.num_free_blocks == 16
