"""Fields of the cache and of the scheduler: what is said of wrong ones, and how large right ones may be."""

from dataclasses import replace

import pytest
from bad_values import HUGE
from helpers import GREEDY, make_engine, tokens_alone

from labkit import LADDER, CacheConfig, EngineOptions, SamplingParams, SchedulerConfig
from labkit.errors import OptionError


@pytest.mark.parametrize("value", [2**31, 2**63, 10**30, HUGE], ids=["2**31", "2**63", "10**30", "huge"])
def test_limits_that_take_no_memory_may_be_of_any_size(value):
    engine = make_engine(
        max_prefix_entries=value,
        prefill_max_batch_size=value,
        prefill_max_tokens=value,
        pack_window=value,
        admission_policy="pack",
    )
    (completion,) = engine.generate([(1, 2, 3)], replace(GREEDY, top_k=value, seed=value))
    assert completion.token_ids == tokens_alone((1, 2, 3), GREEDY)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CacheConfig(block_size=0), "block_size must be a positive whole number, not 0"),
        (lambda: CacheConfig(block_size=4.0), "block_size must be a positive whole number, not 4.0"),
        (lambda: CacheConfig(block_size=True), "block_size must be a positive whole number, not True"),
        (lambda: CacheConfig(max_blocks_per_layer=-1), "max_blocks_per_layer must be .* not -1"),
        (lambda: CacheConfig(max_prefix_entries=0), "max_prefix_entries must be .* not 0"),
        (lambda: CacheConfig(prefix_cache="no"), "prefix_cache must be True or False, not 'no'"),
        (lambda: SchedulerConfig(max_batch_size=None), "max_batch_size must be .* not None"),
        (lambda: SchedulerConfig(prefill_max_batch_size=0), "prefill_max_batch_size must be .* not 0"),
        (lambda: SchedulerConfig(prefill_max_tokens="9"), "prefill_max_tokens must be .* not '9'"),
        (lambda: SchedulerConfig(pack_window=0), "pack_window must be .* not 0"),
        (lambda: SchedulerConfig(decode_first=1), "decode_first must be True or False, not 1"),
        (lambda: SchedulerConfig(admission_policy="best"), "= 'best'; choose 'fifo' or 'pack'"),
        (lambda: EngineOptions(block_tables="x"), "block_tables = 'x' is not an option; choose from 'reb"),
        (lambda: EngineOptions(kv_append=None), "kv_append = None is not an option; choose from 'per_t"),
        (lambda: EngineOptions(attention=""), "'' is not an option; choose from 'auto', 'plain', 'triton'"),
        (lambda: LADDER["99"], "there is no rung '99'; there are 00"),
        (lambda: LADDER[0], "there is no rung 0; there are 00"),
    ],
)
def test_an_unknown_value_is_refused(make, message):
    with pytest.raises(OptionError, match=message):
        make()


@pytest.mark.parametrize("make", [CacheConfig, SchedulerConfig, EngineOptions, SamplingParams])
def test_an_unknown_name_is_refused(make):
    with pytest.raises(TypeError, match="unexpected keyword argument 'block_sise'"):
        make(block_sise=4)


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
