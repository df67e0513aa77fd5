"""The settings of memory and policy: what they are by default, and what follows from them."""

import pytest

from labkit import CacheConfig, SchedulerConfig
from labkit.errors import OptionError


@pytest.mark.parametrize(
    ("max_batch_size", "max_positions", "expected"),
    [(1, 1, 1), (1, 64, 1), (1, 65, 2), (8, 1024, 128), (3, 1000, 48)],
)
def test_a_pool_has_room_for_a_full_batch_of_the_longest_sequences(max_batch_size, max_positions, expected):
    assert CacheConfig(block_size=64).blocks_per_layer(max_batch_size, max_positions) == expected


def test_a_pool_has_as_many_blocks_as_it_was_told():
    assert CacheConfig(max_blocks_per_layer=5).blocks_per_layer(8, 1024) == 5


def test_settings_are_those_of_the_docstrings_unless_told_otherwise():
    cache, scheduler = CacheConfig(), SchedulerConfig()
    assert (cache.block_size, cache.max_blocks_per_layer, cache.prefix_cache) == (64, None, True)
    assert (scheduler.max_batch_size, scheduler.prefill_max_batch_size) == (8, 8)
    assert (scheduler.prefill_max_tokens, scheduler.admission_policy) == (2048, "fifo")


@pytest.mark.parametrize(
    ("kind", "name", "value", "message"),
    [
        (CacheConfig, "block_size", 0, "block_size must be a positive whole number, not 0"),
        (CacheConfig, "max_blocks_per_layer", 2.0, "max_blocks_per_layer must be a positive whole number"),
        (CacheConfig, "prefix_cache", 1, "prefix_cache must be True or False, not 1"),
        (SchedulerConfig, "max_batch_size", True, "max_batch_size must be a positive whole number, not True"),
        (SchedulerConfig, "admission_policy", "lifo", "admission_policy = 'lifo'; choose 'fifo' or 'pack'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_what_it_must_be(kind, name, value, message):
    with pytest.raises(OptionError, match=message):
        kind(**{name: value})
