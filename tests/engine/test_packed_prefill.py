"""Prompts in chunks beside the decode steps: the same tokens, and nobody waits."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from helpers import (
    GREEDY,
    SEEDED,
    Boom,
    assert_no_block_is_lost,
    failing,
    make_engine,
    run,
    tokens_alone,
    tokens_by_request,
    tokens_of,
)
from hypothesis import given
from hypothesis import strategies as st

from labkit import LADDER, SamplingParams
from labkit.engine import packed_prefill
from labkit.engine.packed_chunk import PackedChunk, counts_of
from labkit.engine.step import fused_chunk
from labkit.engine.step.chunk import ChunkInFlight
from labkit.errors import OptionError

PACKED = LADDER["13"].options
PROMPTS = [(1, 2, 3), tuple(range(20, 39)), (5, 6), (1, 2, 3, 4), (7,), tuple(range(40, 52))]
EACH_PARAMS = [GREEDY, SEEDED, GREEDY, replace(SEEDED, seed=8), GREEDY, SEEDED]
EXPECTED = [tokens_alone(prompt, params) for prompt, params in zip(PROMPTS, EACH_PARAMS, strict=True)]
LONG = tuple(range(50, 80))


def packed_engine(parts=None, **settings):
    return make_engine(options=PACKED, parts=parts, **settings)


def in_chunks_of(num_tokens, num_ahead=1, **settings):
    """num_ahead: chunks in flight at most while nobody runs, as if graphs had no more rows."""
    budgets = {"prefill_max_tokens": num_tokens * num_ahead, "prefill_chunk_tokens": num_tokens}
    engine = packed_engine(**budgets, **settings)
    engine.prefill.chunk_step.max_tokens = num_tokens
    return engine


def record_chunks(engine):
    """The number of tokens that each prompt has in each chunk, as they are made."""
    counts, make_chunk = [], engine.prefill.make_chunk

    def noted(*about):
        chunk = make_chunk(*about)
        counts.append([end - start for start, end in pairwise(chunk.starts)])
        return chunk

    engine.prefill.make_chunk = noted
    return counts


def long(num_tokens, params=GREEDY):
    return replace(params, max_new_tokens=num_tokens)


# --- the same tokens -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 3, 7, 256])
def test_prompts_in_chunks_of_any_size_give_the_tokens_of_rung_00(num_tokens, prefix_cache):
    engine = in_chunks_of(num_tokens, prefix_cache=prefix_cache)
    counts = record_chunks(engine)
    for _ in range(2):
        assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED
    assert max(map(sum, counts)) == min(num_tokens, sum(map(len, PROMPTS)))
    counters = engine.stats().counters
    num_prompt_tokens = 2 * sum(map(len, PROMPTS))
    assert counters.prefill_tokens == sum(map(sum, counts))
    assert counters.prefill_tokens + counters.reused_tokens == num_prompt_tokens
    assert counters.reused_tokens >= num_prompt_tokens // 2 if prefix_cache else not counters.reused_tokens
    assert_no_block_is_lost(engine)


def test_where_the_tables_of_prompts_that_are_not_there_would_lie_nothing_is_read(monkeypatch):
    """They are not sent, so that of a chunk by itself there is whatever was in that memory before."""
    monkeypatch.setattr(fused_chunk, "MOST_ROWS", 2)
    engine = packed_engine(prefix_cache=False)
    size = engine.prefill.chunk_step.layout.size
    engine.prefill.chunk_step._room = lambda num_rows: torch.full((size(num_rows),), 10**12)
    assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED


# --- beside the decode steps -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("decode_first", [False, True])
def test_while_a_prompt_is_computed_the_others_get_a_token_in_every_step(decode_first):
    engine = packed_engine(prefill_chunk_tokens=4, prefix_cache=False, decode_first=decode_first)
    running = [engine.add_request((1, 2, 3), long(40)), engine.add_request((5, 6), long(40, SEEDED))]
    outputs = []
    while len(outputs) < 4:
        outputs += engine.step()
    counts = record_chunks(engine)
    newcomer = engine.add_request(LONG, GREEDY)
    num_steps = 0
    while newcomer not in tokens_by_request(outputs):
        made = list(engine.step())
        assert [o.request_id for o in made if o.request_id != newcomer] == running
        engine.check_integrity()
        num_steps += 1
        if newcomer not in tokens_by_request(made):
            stats = engine.stats()
            assert (stats.waiting, stats.joining, stats.running) == (0, 1, 2)
        outputs += made
    assert counts == [[4]] * 7 + [[2]]
    assert num_steps == len(counts) + 1  # it is read one step behind
    handed_out = tokens_by_request(outputs + run(engine))
    assert handed_out == {
        running[0]: tokens_alone((1, 2, 3), long(40)),
        running[1]: tokens_alone((5, 6), long(40, SEEDED)),
        newcomer: tokens_alone(LONG, GREEDY),
    }


OF_8 = [(0, 3, 100), (1, 3, 12), (2, 5, 8), (1, 40, 28), (8, 9, 4)]
OF_128 = [(64, 31, 4), (64, 32, 8), (8, 40, 20), (1, 20, 80), (1, 40, 100), (70, 90, 12)]


@pytest.mark.parametrize(
    ("max_batch_size", "num_running", "num_waiting", "expected"),
    [*((8, *each) for each in OF_8), *((128, *each) for each in OF_128)],
)
def test_a_chunk_grows_with_the_requests_that_could_run_beside_each_that_does_or_that_are_many(
    max_batch_size, num_running, num_waiting, expected
):
    engine = packed_engine(prefill_max_tokens=100, prefill_chunk_tokens=4, prefix_cache=False)
    scheduler = SimpleNamespace(
        config=replace(engine.scheduler.config, max_batch_size=max_batch_size),
        running=dict.fromkeys(range(num_running)),
        joining={},
        waiting=[SimpleNamespace(num_tokens=5)] * num_waiting,
    )
    engine.prefill._scheduler = scheduler
    assert engine.prefill.max_tokens == expected
    scheduler.config = replace(scheduler.config, prefill_max_tokens=10)
    assert engine.prefill.max_tokens == min(10, expected)


def test_full_chunks_are_launched_one_behind_another_until_somebody_runs():
    engine = in_chunks_of(8, num_ahead=3, prefix_cache=False)
    counts = record_chunks(engine)
    ids = [engine.add_request(*each) for each in zip(PROMPTS, EACH_PARAMS, strict=True)]  # 41 tokens
    assert not list(engine.step())
    assert counts == [[3, 5], [8], [6, 2]]
    outputs = list(engine.step())  # reads the first, and launches one for it: nobody runs yet
    assert [output.request_id for output in outputs] == [ids[0]]
    assert counts[3:] == [[4, 1, 3]]
    for num_ahead in (2, 1, 1):  # who runs waits for no more than one beside the one that is read
        outputs += engine.step()
        assert len(engine.prefill.in_flight) == num_ahead
    assert counts[4:] == [[8]]
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in ids] == EXPECTED
    assert_no_block_is_lost(engine)


@pytest.mark.parametrize(("num_tokens", "chunks"), [(15, [8]), (16, [8, 8]), (19, [8, 8]), (99, [8] * 4)])
def test_whole_chunks_are_ahead_as_a_steps_tokens_and_the_buffers_have_room(num_tokens, chunks):
    engine = in_chunks_of(8, prefix_cache=False)
    engine.scheduler.config = replace(engine.scheduler.config, prefill_max_tokens=num_tokens)
    counts = record_chunks(engine)
    prompts = [tuple(range(100, 109)), tuple(range(53))]
    ids = [engine.add_request(prompt, GREEDY) for prompt in prompts]
    engine.step()
    assert [sum(each) for each in counts] == chunks
    handed_out = tokens_by_request(run(engine))
    assert [sum(each) for each in counts] == [8] * 7 + [6]  # 62 tokens, and no crumbs
    assert [handed_out[i] for i in ids] == [tokens_alone(prompt, GREEDY) for prompt in prompts]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([9000], 8192),
        ([2000] * 2, 8192),  # half is not worth a chunk of its own
        ([1024] * 4, 2048),
        ([1000] * 6, 3072),  # half are 3,000, and the graph has 3,072 rows
        ([1000] * 40, 4096),  # 8 may run
        ([9000] * 8, 8192),
    ],
)
def test_the_first_chunk_has_half_of_the_tokens_that_wait_and_no_pad(lengths, expected):
    engine = packed_engine(prefix_cache=False, prefill_max_tokens=10_000)
    prefill = engine.prefill
    prefill.chunk_step.max_tokens = 8192
    graphs = (1536, 2048, 3072, 4096, 6144, 8192)
    prefill.chunk_step.num_rows = lambda n: next(size for size in graphs if size >= n)
    prefill._scheduler.waiting = [SimpleNamespace(num_tokens=length) for length in lengths]
    assert prefill.max_tokens == expected
    prefill.due = SimpleNamespace()  # so the GPU has work
    assert prefill.max_tokens == 8192


def test_a_chunk_has_no_more_prompts_than_are_admitted_in_a_step():
    engine = packed_engine(prefill_max_batch_size=2, prefix_cache=False)
    counts = record_chunks(engine)
    assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED
    assert [len(each) for each in counts] == [2, 2, 2]


# --- chunks that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize("num_ahead", [1, 3])
def test_whoever_was_admitted_to_a_chunk_whose_launch_fails_waits_again(monkeypatch, num_ahead):
    engine = in_chunks_of(8, num_ahead, prefix_cache=False)
    ids = [engine.add_request(*each) for each in zip(PROMPTS, EACH_PARAMS, strict=True)]
    staging = engine.prefill.chunk_step.staging
    monkeypatch.setattr(staging, "send", failing(staging.send))
    with pytest.raises(Boom):
        engine.step()
    assert [request.request_id for request in engine.scheduler.waiting] == ids
    stats = engine.stats()
    assert (stats.joining, stats.free_blocks) == (0, stats.blocks_per_layer)
    handed_out = tokens_by_request(run(engine))
    assert [handed_out[i] for i in ids] == EXPECTED


@pytest.mark.parametrize(("num_ahead", "num_lost"), [(1, 16), (3, 32)])
def test_chunks_behind_first_tokens_that_cannot_be_read_count_for_nothing(monkeypatch, num_ahead, num_lost):
    """All chunks are given up, and their prompts are computed again: only that is counted."""
    engine = in_chunks_of(8, num_ahead, prefix_cache=False)
    counts = record_chunks(engine)
    for each in zip(PROMPTS, EACH_PARAMS, strict=True):
        engine.add_request(*each)
    monkeypatch.setattr(ChunkInFlight, "read", failing(ChunkInFlight.read))
    engine.step()
    with pytest.raises(Boom):
        engine.step()
    assert not engine.prefill.in_flight
    run(engine)
    num_prompt_tokens = sum(map(len, PROMPTS))
    assert sum(map(sum, counts)) == num_lost + num_prompt_tokens
    assert engine.stats().counters.prefill_tokens == num_prompt_tokens


@pytest.mark.parametrize("at_call", range(4))
def test_a_chunk_that_is_not_kept_leaves_the_first_tokens_of_the_chunk_before(monkeypatch, at_call):
    """It was launched, and comes once more: its tokens lay in one buffer, and the next ones went over those
    of the chunk before, which were not read yet."""
    one_token = SamplingParams(1, stop_on_eos=False)
    prompts = ((1,), (1, 2, 3), (5, 6), (7, 8, 9))
    budget = {"prefill_max_batch_size": 1, "prefill_max_tokens": 2, "prefill_chunk_tokens": 1}
    engine = make_engine(options=LADDER["14"].options, block_size=1, max_batch_size=2, **budget)
    request_ids = [engine.add_request(prompt, one_token) for prompt in prompts]
    insert = failing(engine.prefix_cache.insert, at_call)
    monkeypatch.setattr(engine.prefix_cache, "insert", insert)
    outputs = []
    with pytest.raises(Boom):
        while engine.has_work:
            outputs += engine.step()
    made = tokens_by_request(outputs + run(engine))
    assert [made[i] for i in request_ids] == [tokens_alone(prompt, one_token) for prompt in prompts]


# --- a part of the reader's ------------------------------------------------------------------------


def test_a_wrong_part_fails_loudly_and_its_requests_wait_on():
    class Forgetful(PackedChunk):
        def __init__(self, prompts, num_computed, max_tokens):
            super().__init__(prompts, [0] * len(prompts), max_tokens)

    engine = packed_engine({"batching": Forgetful}, prefill_max_tokens=8)
    request_id = engine.add_request(LONG, GREEDY)
    engine.step()
    with pytest.raises(OptionError, match=r"wrong chunk: context_lens is \[8\], not \[0\]"):
        engine.step()
    engine.check_integrity()
    assert [request.request_id for request in engine.scheduler.joining] == [request_id]


@pytest.mark.parametrize(
    ("left", "counts", "finished"),
    [
        ([3, 2], [3, 2], [0, 1]),
        ([3, 2], [2, 0], []),
        ([0, 3, 0], [0, 3, 0], [0, 1, 2]),
        ([3, 0, 2], [1, 0, 0], []),  # known, behind one that goes on
        ([3, 0, 2], [1, 0, 2], [2]),
    ],
)
def test_which_prompts_a_chunk_finishes(left, counts, finished):
    joining = [SimpleNamespace(num_left=num_left) for num_left in left]
    assert packed_prefill.finished_by(joining, counts) == finished


# --- the plan of a chunk -----------------------------------------------------------------------------

PROMPT_LISTS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=6)


@given(PROMPT_LISTS, st.data(), st.integers(1, 9))
def test_every_token_is_in_one_chunk_in_order_and_chunks_are_full(prompts, data, max_tokens):
    at_first = [data.draw(st.integers(0, len(prompt))) for prompt in prompts]
    num_computed, got = list(at_first), [[] for _ in prompts]
    while num_left := sum(map(len, prompts)) - sum(num_computed):
        chunk = PackedChunk(prompts, num_computed, max_tokens)
        counts = counts_of(chunk, prompts, num_computed, max_tokens)
        assert len(chunk.token_ids) == len(chunk.positions) == sum(counts) == min(max_tokens, num_left)
        assert chunk.context_lens == num_computed
        for p, (start, end) in enumerate(pairwise(chunk.starts)):
            got[p] += chunk.token_ids[start:end]
            assert chunk.positions[start:end] == list(range(num_computed[p], num_computed[p] + end - start))
        num_computed = [done + count for done, count in zip(num_computed, counts, strict=True)]
    assert got == [prompt[done:] for prompt, done in zip(prompts, at_first, strict=True)]


class Edited(PackedChunk):
    """A chunk of two prompts, with one attribute replaced."""

    def __init__(self, **edits):
        super().__init__(TWO_PROMPTS, [1, 0], 4)
        for name, value in edits.items():
            setattr(self, name, value)


TWO_PROMPTS = [(1, 2, 3), (4, 5, 6)]
WRONG_CHUNKS = {
    "a token of another prompt": ({"token_ids": [2, 4, 4, 5]}, "token_ids are the next tokens"),
    "tokens without an end": ({"token_ids": range(10**12)}, "token_ids are the next tokens"),
    "positions of the chunk": ({"positions": [0, 1, 2, 3]}, "positions are the places"),
    "a prompt begins anew": ({"context_lens": [0, 0]}, r"context_lens is \[1, 0\], not \[0, 0\]"),
    "no end": ({"starts": [0, 2]}, r"starts has the 3 numbers from 0 on, not \[0, 2\]"),
    "no beginning": ({"starts": [1, 2, 4]}, "starts has the 3 numbers"),
    "more than there are": ({"starts": [0, 0, 4]}, "prompt 1 has 3 tokens left, of which it gets 4"),
    "more than there is room for": ({"starts": [0, 2, 5]}, "it has 5 tokens, but 1 to 4 are allowed"),
    "nothing": (
        {"starts": [0, 0, 0], "token_ids": [], "positions": []},
        "it has 0 tokens, but 1 to 4 are allowed",
    ),
}


@pytest.mark.parametrize(("edits", "message"), WRONG_CHUNKS.values(), ids=WRONG_CHUNKS)
def test_a_wrong_chunk_is_refused(edits, message):
    assert counts_of(Edited(), TWO_PROMPTS, [1, 0], 4) == [2, 2]
    with pytest.raises(OptionError, match=f"the part for batching made a wrong chunk: {message}"):
        counts_of(Edited(**edits), TWO_PROMPTS, [1, 0], 4)
