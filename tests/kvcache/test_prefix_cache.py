"""The prefix cache: what is found, what is evicted, and that the tokens never change by it."""

import sys

import pytest
import torch
from helpers import (
    PARAMS,
    assert_no_block_is_lost,
    kv_numbers,
    make_engine,
    make_manager,
    tokens_alone,
    tokens_of,
)

from labkit.engine import InferenceSession
from labkit.kvcache import PrefixCache

# --- the cache alone -------------------------------------------------------------------------------


def cache_of(*prompts, max_entries=9):
    """A cache that holds these prompts and nothing else: their sessions are gone."""
    manager = make_manager(max_blocks_per_layer=20)
    prefix_cache = PrefixCache(manager, max_entries)
    for prompt in prompts:
        session = InferenceSession(manager)
        session.append_prompt(*kv_numbers(manager, 0, len(prompt)))
        prefix_cache.insert(prompt, session.block_ids_per_layer, torch.tensor([float(len(prompt))]))
        session.release()
    return manager, prefix_cache


MODULUS = sys.hash_info.modulus  # whole numbers that differ by it have the same hash


def test_prompts_whose_hashes_are_the_same_never_mix():
    """What is looked up is the text itself; a hash only says where to look."""
    prompts = [(1, 2, 3), (1 + MODULUS, 2, 3), (1, 2 + MODULUS, 3), (1, 2, 3 + MODULUS)]
    assert len({hash(prompt) for prompt in prompts}) == 1 and len(set(prompts)) == 4
    manager, prefix_cache = cache_of(*prompts[:2])
    assert prefix_cache.lookup(prompts[2]) is None and prefix_cache.lookup(prompts[3]) is None
    held = [prefix_cache.lookup((*prompt, 7)) for prompt in prompts[:2]]
    assert [entry.token_ids for entry in held] == prompts[:2]
    assert held[0].block_ids_per_layer != held[1].block_ids_per_layer
    prefix_cache.evict_one()
    assert prefix_cache.lookup(prompts[0]) is None and prefix_cache.lookup(prompts[1]) is held[1]
    manager.check_integrity([held[1]])


# --- in the engine ---------------------------------------------------------------------------------

PROMPT = tuple(range(10, 20))  # blocks of 4, 4 and 2 tokens


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("num_more", [1, 9])
def test_a_partial_hit_computes_only_the_rest_and_changes_no_token(params, num_more):
    engine = make_engine()
    engine.generate([PROMPT], params)
    longer = PROMPT + tuple(range(100, 100 + num_more))
    assert tokens_of(engine.generate([longer], params)) == [tokens_alone(longer, params)]
    counters = engine.stats().counters
    assert (counters.prefill_tokens, counters.reused_tokens) == (10 + num_more, 10)
    assert tokens_of(engine.generate([PROMPT], params)) == [tokens_alone(PROMPT, params)]
    assert_no_block_is_lost(engine)
