"""Blocks that requests leave in the prefix cache, and those that they find there: tokens and counts."""

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch
from helpers import (
    GREEDY,
    PARAMS,
    assert_no_block_is_lost,
    make_engine,
    run,
    small_model,
    tokens_alone,
    tokens_by_request,
    tokens_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import SamplingParams
from labkit.engine import InferenceSession
from labkit.kvcache import BlockPrefixCache
from labkit.ladder import LADDER, ONE_TABLE, OVERLAP, SAMPLING_WITHOUT_SORTS

RUNGS = {"07": ONE_TABLE, "10": OVERLAP, "12": SAMPLING_WITHOUT_SORTS}
ENGINES = {f"{number}, blocks": replace(options, prefixes="blocks") for number, options in RUNGS.items()}
engines = pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
IN_CHUNKS = LADDER["14"].options
BLOCKS = ENGINES["12, blocks"]

SYSTEM = tuple(range(100, 124))  # 6 blocks of 4
LONG = SamplingParams(20, stop_on_eos=False)


def blocks_engine(options=BLOCKS, **settings):
    return make_engine(options=options, **settings)


def prompt_tokens(engine):
    """Prompt tokens computed, and found in the cache."""
    counters = engine.stats().counters
    return counters.prefill_tokens, counters.reused_tokens


def texts_in(engine):
    return {entry.text for entry in engine.prefix_cache}


class OneKey(BlockPrefixCache):
    """Every hash is the same."""

    def block_key(self, parent_key, token_ids):
        return 0


# --- what an admission looks at -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("num_kept", [20, 200])
def test_in_a_full_pool_an_admission_asks_each_session_once_and_looks_at_few_blocks(monkeypatch, num_kept):
    """However many blocks are cached, and however many have to go."""
    engine = blocks_engine(IN_CHUNKS, max_blocks_per_layer=num_kept, max_batch_size=4)
    texts = ((100 + i // 50, 1 + i % 50, 2, 3, 4) for i in range(num_kept - 1))  # a block each, and a token
    for text in texts:
        engine.generate([text], SamplingParams(1))
    kept = engine.stats().prefix_entries
    assert kept == num_kept - 1
    asked, looked = [], []
    reach, is_in_use = InferenceSession.new_blocks_to_reach, engine.prefix_cache.is_in_use
    monkeypatch.setattr(
        InferenceSession, "new_blocks_to_reach", lambda *args: asked.append(args) or reach(*args)
    )
    monkeypatch.setattr(
        engine.prefix_cache, "is_in_use", lambda entry: looked.append(entry) or is_in_use(entry)
    )
    engine.add_request(tuple(range(40)), SamplingParams(1))  # 10 blocks
    (admitted,) = engine.scheduler.admit(512)
    assert engine.stats().prefix_entries == kept - 9
    assert len(asked) == 2 and len(looked) == 2 * 9  # by the first guess, and counted; seen, and evicted
    engine.scheduler.put_back([admitted.request])


# --- what is reused --------------------------------------------------------------------------------


@pytest.mark.slow
@engines
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_a_hit_and_a_miss_give_the_same_tokens(options, params):
    engine = blocks_engine(options)
    prompts = [SYSTEM, (*SYSTEM, 1, 2), (*SYSTEM[:10], 3), SYSTEM, SYSTEM[:4], SYSTEM[:5]]
    for prompt in prompts:
        assert tokens_of(engine.generate([prompt], params)) == [tokens_alone(prompt, params)]
    # All of SYSTEM but its last block, which is computed for the logits; then its first two blocks; ...
    reused = 0 + 24 + 8 + 20 + 0 + 4
    assert prompt_tokens(engine) == (sum(map(len, prompts)) - reused, reused)
    assert_no_block_is_lost(engine)


@engines
@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("num_new", range(1, 9))
def test_a_request_that_leaves_keeps_the_blocks_whose_tokens_were_all_computed(
    options, num_new, is_cancelled
):
    """Of its last token they are not: it was made, and nothing was made of it. Of a cancelled one, what is
    certain stays, though a step is in flight."""
    engine = blocks_engine(options)
    if is_cancelled:
        request_id = engine.add_request(SYSTEM[:6], LONG)
        for _ in range(num_new):
            engine.step()
        made = engine.cancel(request_id).token_ids
    else:
        made = engine.generate([SYSTEM[:6]], replace(LONG, max_new_tokens=num_new))[0].token_ids
    text = SYSTEM[:6] + made
    assert texts_in(engine) == {text[:end] for end in range(4, len(text), 4) if end <= len(text) - 1}
    assert_blocks_are_right(engine)
    assert_no_block_is_lost(engine)


ORACLE = copy.deepcopy(small_model().network)  # in which no failure is planted


@cache
@torch.inference_mode()
def keys_and_values(text):
    """Of all of a text's tokens, each [L, H, T, D], from one prefill."""
    prefilled = ORACLE.prefill(torch.tensor([text]), torch.tensor([len(text)]))
    return prefilled.keys[:, 0], prefilled.values[:, 0]


def assert_blocks_are_right(engine):
    """Each cached block has the keys and values of its own text."""
    manager = engine.kv_manager
    for entry in engine.prefix_cache:
        index = manager.info(entry.block_id).block_index
        for pool, made in zip((manager.k_cache, manager.v_cache), keys_and_values(entry.text), strict=True):
            torch.testing.assert_close(pool[:, index], made[:, :, entry.start :], rtol=0, atol=1e-3)


@engines
def test_a_preempted_request_goes_on_from_its_blocks(options):
    engine = blocks_engine(options)
    request_id = engine.add_request(SYSTEM[:6], LONG)
    outputs = [output for _ in range(9) for output in engine.step()]
    (request,) = engine.scheduler.running
    num_tokens = request.num_tokens
    engine.scheduler.preempt_newest()
    engine.check_integrity()
    assert tokens_by_request(outputs + run(engine)) == {request_id: tokens_alone(SYSTEM[:6], LONG)}
    reused = (num_tokens - 1) // 4 * 4
    assert reused >= 12 and prompt_tokens(engine) == (6 + num_tokens - reused, reused)
    assert_no_block_is_lost(engine)


# --- requests that begin alike and come together ---------------------------------------------------


def test_the_second_waits_for_one_step_and_then_all_others_come_at_once():
    engine = blocks_engine()
    ids = [engine.add_request((*SYSTEM, i), GREEDY) for i in range(4)]
    ids.append(engine.add_request((7, 8, 9), GREEDY))  # nor does who begins in another way come first
    engine.step()
    assert [request.request_id for request in engine.scheduler.waiting] == ids[1:]
    engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (5, 0)
    assert prompt_tokens(engine) == (len(SYSTEM) + 4 + 3, 3 * len(SYSTEM))


# --- failures --------------------------------------------------------------------------------------


def test_blocks_that_a_broken_request_shares_go_and_those_who_run_on_them_keep_theirs(monkeypatch):
    engine = blocks_engine()
    first = engine.add_request(SYSTEM, LONG)
    outputs = list(engine.step())
    engine.add_request((*SYSTEM, 1), LONG)
    with monkeypatch.context() as patch:
        patch.setattr(engine.prefill, "sample", lambda *args: [None])  # its logits are no numbers
        outputs += engine.step()
    assert engine.stats().counters.finished == {"error": 1} and engine.stats().prefix_entries == 0
    engine.check_integrity()
    outputs += run(engine)
    assert tokens_by_request(outputs)[first] == tokens_alone(SYSTEM, LONG)
    assert_no_block_is_lost(engine)


# --- sharing ---------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=25)
@given(
    prompts=st.lists(
        st.tuples(st.sampled_from([0, 3, 4, 8, 11]), st.lists(st.integers(0, 2), min_size=1, max_size=6)),
        min_size=1,
        max_size=8,
    ),
    block_size=st.integers(1, 5),
    spare_blocks=st.integers(0, 6),
    options=st.sampled_from([*ENGINES.values(), IN_CHUNKS]),
    chunk_tokens=st.sampled_from([3, 10, 512]),
    each=st.sampled_from([*PARAMS.values()]),
    own=st.sampled_from([{}, {"prefixes": OneKey}]),
    decode_first=st.booleans(),
)
def test_whatever_is_shared_and_evicted_tokens_are_those_of_each_alone(
    prompts, block_size, spare_blocks, options, chunk_tokens, each, own, decode_first
):
    texts = [SYSTEM[:shared] + tuple(tail) for shared, tail in prompts]
    engine = blocks_engine(
        options,
        parts=own,
        block_size=block_size,
        max_blocks_per_layer=-(-25 // block_size) + spare_blocks,
        max_batch_size=3,
        prefill_chunk_tokens=chunk_tokens,
        decode_first=decode_first,
    )
    for _ in range(2):
        assert tokens_of(engine.generate(texts, each)) == [tokens_alone(text, each) for text in texts]
        assert_blocks_are_right(engine)
    assert_no_block_is_lost(engine)
