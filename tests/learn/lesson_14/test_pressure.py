"""A cache alone, in pools of several sizes."""

import pytest

from labkit.errors import OutOfBlocksError
from labkit.kvcache import BlockPrefixCache
from labkit.learn.lesson_14.block_cache import BlockCache
from labkit.learn.lesson_14.pressure import (
    AllAtOnce,
    come_and_go,
    draw_texts,
    found_share,
    lookup_us,
    pool,
)


@pytest.mark.slow
@pytest.mark.parametrize("part", [BlockCache, BlockPrefixCache])
def test_more_memory_finds_more_and_the_least_recently_used_beats_all_at_once(part):
    shares = [found_share(part, num_blocks) for num_blocks in (16, 48, 128)]
    assert shares == sorted(shares) and shares[0] > 0 and shares[-1] < 128 / 148
    assert all(
        found_share(AllAtOnce, num_blocks) <= share
        for num_blocks, share in zip((16, 48, 128), shares, strict=True)
    )


def test_texts_are_the_same_each_time_and_popular_ones_come_often():
    drawn = draw_texts()
    assert drawn == draw_texts() and {len(text) for text in drawn} == {148}
    firsts = [text[0] // 1000 for text in drawn]
    assert firsts.count(0) > firsts.count(3) > firsts.count(11) > 0


def test_a_text_that_is_too_long_for_the_pool_leaves_nothing_behind():
    manager = pool(2, 4)
    cache = BlockCache(manager)
    come_and_go(manager, cache, range(5))
    with pytest.raises(OutOfBlocksError):
        come_and_go(manager, cache, range(50, 59))
    manager.check_integrity(cache)


def test_a_lookup_is_timed_by_length():
    times = lookup_us(BlockCache, (8, 40), 4)
    assert list(times) == [8, 40] and all(us > 0 for us in times.values())
