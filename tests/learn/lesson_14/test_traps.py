"""What lesson 14's wrong caches show without a gate."""

import pytest
from helpers import small_model

from labkit import LADDER, CacheConfig, InferenceEngine, SamplingParams
from labkit.learn.lesson_14 import traps
from labkit.learn.lesson_14.block_cache import BlockCache

FIRST, SECOND = tuple(range(1, 11)), tuple(range(30, 39))


def engine(part, num_blocks=12):
    return InferenceEngine(
        small_model(),
        LADDER["14"].options,
        device="cpu",
        parts={"prefixes": part},
        cache=CacheConfig(4, num_blocks),
    )


def test_texts_are_mixed_if_keys_collide_and_nothing_is_compared():
    right, wrong = (traps.with_keys_by_place(part) for part in (BlockCache, traps.TrustsTheKey))
    alone = traps.last_text(engine(right), [SECOND], 8)
    assert traps.last_text(engine(right), [FIRST, SECOND], 8) == alone
    assert traps.last_text(engine(wrong), [SECOND], 8) == alone
    assert traps.last_text(engine(wrong), [FIRST, SECOND], 8) != alone


@pytest.mark.parametrize(
    ("part", "num_lost"), [(BlockCache, 0), (traps.KeepsTheLast, 1), (traps.ParentsFirst, 0)]
)
def test_an_entry_that_is_not_full_is_lost(part, num_lost):
    built = engine(part)
    traps.last_text(built, [FIRST], 1)
    assert traps.num_lost(built.prefix_cache) == num_lost


@pytest.mark.parametrize(("part", "num_lost"), [(BlockCache, 0), (traps.ParentsFirst, 1)])
def test_an_entry_whose_parent_is_gone_is_lost(part, num_lost):
    built = engine(part)
    traps.last_text(built, [FIRST], 1)
    assert built.prefix_cache.evict_one()
    assert traps.num_lost(built.prefix_cache) == num_lost


@pytest.mark.parametrize(("part", "evicted"), [(BlockCache, 2), (traps.TakesWhatIsUsed, 4)])
def test_to_evict_what_is_in_use_frees_nothing(part, evicted):
    built = engine(part)
    traps.last_text(built, [FIRST], 1)
    built.add_request(SECOND, SamplingParams(4, stop_on_eos=False))
    while len(built.prefix_cache) < 4:
        built.step()  # until the second text's first token was read: then its blocks are kept, too
    assert traps.evict_all(built) == (evicted, 2)
