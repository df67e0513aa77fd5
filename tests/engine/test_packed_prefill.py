"""Prompts in chunks beside the decode steps: the same tokens, and nobody waits."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from chunked_engines import (
    EACH_PARAMS,
    EXPECTED,
    LONG,
    PACKED,
    PROMPTS,
    in_chunks_of,
    joining_ids,
    packed_engine,
    record_chunks,
)
from helpers import (
    GREEDY,
    SEEDED,
    assert_no_block_is_lost,
    make_engine,
    run,
    small_model,
    tokens_alone,
    tokens_by_request,
    tokens_of,
)

from labkit import FinishReason
from labkit.engine import packed_prefill
from labkit.engine.packed_chunk import PackedChunk
from labkit.engine.step import fused_chunk
from labkit.errors import OptionError


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


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "drawn"])
def test_a_prompt_that_the_cache_knows_needs_no_chunk(params):
    engine = packed_engine()
    engine.generate([(1, 2, 3)], GREEDY)
    counts = record_chunks(engine)
    assert tokens_of(engine.generate([(1, 2, 3)] * 2, params)) == [tokens_alone((1, 2, 3), params)] * 2
    assert counts == [] and engine.stats().counters.reused_tokens == 6


def test_a_text_that_ends_with_its_first_token_ends_then():
    eos = tokens_alone((1, 2, 3), GREEDY)[0]
    engine = make_engine(small_model(eos_token_id=eos), PACKED)
    (completion,) = engine.generate([(1, 2, 3)], GREEDY)
    assert completion.finish_reason is FinishReason.STOP and completion.token_ids == (eos,)
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


@pytest.mark.parametrize(
    ("num_running", "num_waiting", "expected"),
    [(0, 3, 100), (1, 1, 4), (1, 3, 12), (2, 5, 8), (2, 3, 4), (1, 7, 28), (1, 40, 28), (4, 9, 4), (8, 9, 4)],
)
def test_a_chunk_grows_with_the_requests_that_could_run_beside_each_that_does(
    num_running, num_waiting, expected
):
    engine = packed_engine(prefill_max_tokens=100, prefill_chunk_tokens=4, prefix_cache=False)
    scheduler = SimpleNamespace(
        config=engine.scheduler.config,  # of 8 together
        running=dict.fromkeys(range(num_running)),
        joining={},
        waiting=[SimpleNamespace(num_tokens=5)] * num_waiting,
    )
    engine.prefill._scheduler = scheduler
    assert engine.prefill.max_tokens == expected
    scheduler.config = replace(scheduler.config, prefill_max_tokens=10)
    assert engine.prefill.max_tokens == min(10, expected)


@pytest.mark.parametrize(
    ("num_running", "num_waiting", "times"), [(64, 31, 1), (64, 32, 2), (8, 40, 5), (1, 40, 40), (70, 90, 3)]
)
def test_a_chunk_grows_where_many_could_run_whoever_does(num_running, num_waiting, times):
    engine = packed_engine(prefill_max_tokens=1000, prefill_chunk_tokens=4, prefix_cache=False)
    engine.prefill._scheduler = SimpleNamespace(
        config=replace(engine.scheduler.config, max_batch_size=128),
        running=dict.fromkeys(range(num_running)),
        joining={},
        waiting=[SimpleNamespace(num_tokens=5)] * num_waiting,
    )
    assert engine.prefill.max_tokens == 4 * times


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


def test_a_chunk_is_large_where_nobody_decodes_and_small_beside_a_decode_step():
    engine = packed_engine(prefill_max_tokens=20, prefill_chunk_tokens=4, prefix_cache=False)
    counts = record_chunks(engine)
    engine.add_request((1, 2, 3), long(20))
    engine.step(), engine.step()
    engine.add_request(LONG, long(2))
    run(engine)
    assert counts == [[3]] + [[4]] * 7 + [[2]]
    engine.generate([LONG], long(2))
    assert counts[9:] == [[20], [10]]


def test_a_chunk_has_no_more_prompts_than_are_admitted_in_a_step():
    engine = packed_engine(prefill_max_batch_size=2, prefix_cache=False)
    counts = record_chunks(engine)
    assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED
    assert [len(each) for each in counts] == [2, 2, 2]


# --- requests that leave ---------------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", range(1, 6))
@pytest.mark.parametrize("which", [0, 1])
def test_a_joining_request_can_be_cancelled_at_any_time(which, num_steps):
    engine = in_chunks_of(9, prefix_cache=False)
    prompts = [LONG, tuple(range(20, 39))]
    ids = [engine.add_request(prompt, GREEDY) for prompt in prompts]
    outputs = [output for _ in range(num_steps) for output in engine.step()]
    completion = engine.cancel(ids[which])
    assert completion.finish_reason is FinishReason.CANCELLED
    engine.check_integrity()
    other = engine.add_request((5, 6), GREEDY)  # in blocks that were its own
    handed_out = tokens_by_request(outputs + run(engine))
    assert handed_out.pop(ids[1 - which]) == tokens_alone(prompts[1 - which], GREEDY)
    assert handed_out[other] == tokens_alone((5, 6), GREEDY)
    assert_no_block_is_lost(engine)


def test_when_blocks_run_out_who_joins_makes_way_for_who_decodes():
    # 3 + 17 tokens fill 5 of 13 blocks, and the newcomer takes 8: it is admitted, and then in the way.
    engine = packed_engine(prefill_chunk_tokens=1, prefix_cache=False, max_blocks_per_layer=10)
    first = engine.add_request((1, 2, 3), long(18))
    outputs = list(engine.step()) + list(engine.step())
    second = engine.add_request(LONG, long(2))
    outputs += run(engine)
    assert engine.stats().counters.preemptions >= 1
    assert tokens_by_request(outputs) == {
        first: tokens_alone((1, 2, 3), long(18)),
        second: tokens_alone(LONG, long(2)),
    }
    assert_no_block_is_lost(engine)


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
    assert joining_ids(engine) == [request_id]


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
    class Left:
        def __init__(self, num_left):
            self.num_left = num_left

    assert packed_prefill.finished_by(map(Left, left), counts) == finished
