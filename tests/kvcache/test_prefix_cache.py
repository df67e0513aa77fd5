"""The prefix cache: what is found, what is evicted, and that the tokens never change by it."""

import sys

import pytest
import torch
from helpers import (
    GREEDY,
    PARAMS,
    assert_no_block_is_lost,
    kv_numbers,
    make_engine,
    make_manager,
    run,
    tokens_alone,
    tokens_by_request,
    tokens_of,
)

from labkit import SamplingParams
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


def test_the_logits_kept_are_the_caches_own():
    _, prefix_cache = cache_of()
    logits = torch.zeros(2, 3)
    prefix_cache.insert((1,), [[], []], logits[0])
    logits += 1
    assert prefix_cache.lookup((1,)).last_logits.tolist() == [0, 0, 0]


# --- in the engine ---------------------------------------------------------------------------------

PROMPT = tuple(range(10, 20))  # blocks of 4, 4 and 2 tokens


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_a_whole_hit_computes_no_prompt_token_and_changes_none(params):
    engine = make_engine()
    for reused in (0, 10, 20):
        assert tokens_of(engine.generate([PROMPT], params)) == [tokens_alone(PROMPT, params)]
        counters = engine.stats().counters
        assert (counters.prefill_tokens, counters.reused_tokens) == (10, reused)
    assert engine.stats().append_paths["copy_on_write"] == 6  # three requests, two layers
    assert_no_block_is_lost(engine)


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


def test_a_preempted_request_finds_its_prompt_and_computes_its_output_again():
    """What is kept with the prompt decided its first token, which it has already."""
    engine = make_engine()
    request_id = engine.add_request(PROMPT, GREEDY)
    outputs = [output for _ in range(3) for output in engine.step()]
    (request,) = engine.scheduler.running
    engine.scheduler.put_back([request])
    assert tokens_by_request(outputs + run(engine)) == {request_id: tokens_alone(PROMPT, GREEDY)}
    counters = engine.stats().counters
    assert (counters.prefill_tokens, counters.reused_tokens) == (10 + 3, 10)
    assert_no_block_is_lost(engine)


ONE_TOKEN = SamplingParams(max_new_tokens=1)
ELSE = tuple(range(50, 55))  # blocks of 4 and 1 tokens


def test_a_whole_hit_outlives_its_entry_evicted_in_the_same_step():
    engine = make_engine(max_blocks_per_layer=7)
    for prompt in (PROMPT[:9], PROMPT, ELSE):
        engine.generate([prompt], ONE_TOKEN)
    assert engine.stats().prefix_evictions == 0
    # The last prompt takes the entries of PROMPT and ELSE. A shorter one that PROMPT begins with stays.
    prompts = [PROMPT, (*ELSE, 1), PROMPT[:9], (7, 7, 7)]
    request_ids = [engine.add_request(prompt, GREEDY) for prompt in prompts]
    outputs = list(engine.step())
    assert engine.stats().prefix_evictions == 2
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in request_ids] == [tokens_alone(p, GREEDY) for p in prompts]
    assert_no_block_is_lost(engine)


def test_a_request_that_must_wait_anyway_evicts_nothing():
    engine = make_engine(block_size=4, max_blocks_per_layer=8)
    engine.generate([[1, 2, 3]], SamplingParams(max_new_tokens=1))
    engine.add_request(list(range(1, 21)), SamplingParams(max_new_tokens=8, stop_on_eos=False))
    engine.step()
    assert engine.stats().free_blocks == 2
    engine.add_request(list(range(2, 18)), GREEDY)  # 4 blocks; evicting the short prompt would free 1
    engine.step()
    assert (engine.stats().waiting, engine.stats().prefix_evictions) == (1, 0)
    run(engine)
    assert_no_block_is_lost(engine)
