"""Tokens that are read one step behind: what is on its way, and who gets it."""

import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest
import torch
from helpers import (
    GREEDY,
    SEEDED,
    Boom,
    ahead,
    assert_no_block_is_lost,
    failing,
    make_engine,
    run,
    small_model,
    tokens_alone,
    tokens_by_request,
    tokens_of,
)
from resident_helpers import EACH_PARAMS, EXPECTED, PROMPTS, TEXTS, gpu_engine

from labkit import LADDER, InferenceEngine, SamplingParams
from labkit.engine import InferenceSession, StepOutput, overlap
from labkit.engine.request import Request
from labkit.engine.step.resident import StepInFlight
from labkit.engine.step.staging import TokenCopy
from labkit.ladder import BLOCK_PREFIX_CACHE, OVERLAP, PAGED_ENGINE
from labkit.paths import ROOT
from labkit.watch import profiled_by, replaced


def note_launches(engine: InferenceEngine) -> list[list[int]]:
    """Whom each launch is for, from now on."""
    launches, start = [], engine.decode_step.start

    def noting_start(requests: list[Request], *about: object) -> StepInFlight:
        launches.append([request.request_id for request in requests])
        return start(requests, *about)

    engine.decode_step.start = noting_start
    return launches


def add_all(engine: InferenceEngine, prompts=PROMPTS, each_params=EACH_PARAMS) -> list[int]:
    return [engine.add_request(*each) for each in zip(prompts, each_params, strict=True)]


def long(num_tokens: int, params: SamplingParams = GREEDY) -> SamplingParams:
    return replace(params, max_new_tokens=num_tokens)


# --- one step ahead --------------------------------------------------------------------------------


@ahead
def test_after_a_step_exactly_one_more_is_in_flight(options):
    engine = make_engine(options=options, prefix_cache=False)
    launches = note_launches(engine)
    ids = add_all(engine, PROMPTS[:3], [long(12), long(12, SEEDED), long(12)])
    engine.step()  # prefill, and behind it the first launch
    assert engine.readback.is_ahead and launches == [ids]
    for num_decoded in range(1, 9):
        outputs = engine.step()
        assert [output.request_id for output in outputs] == ids
        assert launches == [ids] * (num_decoded + 1)
        assert engine.readback.is_ahead
        running = engine.scheduler.running
        assert engine.readback.in_flight.requests == list(running)
        for request, session in running.items():  # its last token's key is never stored, the one before's is
            assert session.num_tokens == request.num_tokens - 1 + 1
        engine.check_integrity()
    counters = engine.stats().counters
    assert (counters.decode_steps, counters.decoded_tokens, counters.generated_tokens) == (8, 24, 3 + 24)
    handed_out = tokens_by_request(run(engine))
    assert {i: len(tokens) for i, tokens in handed_out.items()} == dict.fromkeys(ids, 12 - 9)


@ahead
def test_a_request_that_joins_gets_its_first_token_with_the_step_behind(options):
    """The others do not wait for it: while it is prefilled, their step stays in flight."""
    engine = make_engine(options=options, prefix_cache=False)
    launches = note_launches(engine)
    first = engine.add_request(PROMPTS[0], long(12))
    engine.step(), engine.step()
    in_flight = engine.readback.in_flight
    second = engine.add_request(PROMPTS[2], long(12))
    outputs = list(engine.step())  # prefill
    assert [output.request_id for output in outputs] == [second]
    assert engine.readback.in_flight is in_flight
    assert [output.request_id for output in engine.step()] == [first]
    assert launches == [[first], [first], [first, second]]
    assert [output.request_id for output in engine.step()] == [first, second]


# --- tokens that nobody gets -----------------------------------------------------------------------


def test_a_step_in_which_nobody_runs_drops_what_is_in_flight():
    engine = make_engine(options=OVERLAP, decode_first=True)
    request_id = engine.add_request(PROMPTS[0], GREEDY)
    engine.step(), engine.step()
    assert engine.readback.is_ahead
    engine.cancel(request_id)
    assert not engine.step()
    assert not engine.readback.is_ahead


# --- pools too small -------------------------------------------------------------------------------


TWO = [(1, 2, 3, 4), (7, 8, 9, 10)]
TWO_TEXTS = [tokens_alone(prompt, GREEDY) for prompt in TWO]


@ahead
def test_a_following_step_without_blocks_waits_for_the_one_in_flight(options):
    """Two requests of four tokens, four blocks of four: the ninth token of both has none."""
    engine = make_engine(options=options, prefix_cache=False, max_blocks_per_layer=4)

    def put_back(requests: list[Request], inner=engine.scheduler.put_back) -> None:
        assert not engine.readback.is_ahead  # nobody is preempted while a step is in flight
        inner(requests)

    engine.scheduler.put_back = put_back
    launches = note_launches(engine)
    ids = add_all(engine, TWO, [GREEDY, GREEDY])
    outputs = list(engine.step())
    seen = []
    while engine.stats().counters.preemptions == 0:
        seen.append((engine.readback.is_ahead, engine.stats().free_blocks, len(launches)))
        outputs += engine.step()
    # The prefill leaves two blocks, which the first step, launched behind it, takes. Four steps fill them; a
    # fifth, launched behind the fourth, waits, and the newest is preempted when nothing is in flight.
    assert seen == [(True, 0, 1), (True, 0, 2), (True, 0, 3), (True, 0, 4), (False, 0, 4)]
    assert all(launch == ids for launch in launches[:4])
    assert [request.request_id for request in engine.scheduler.running] == ids[:1]
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in ids] == TWO_TEXTS
    assert_no_block_is_lost(engine)


def test_cached_prompts_make_way_for_a_step_behind_the_one_in_flight():
    """A pool that is full of what others have left, as a server's is: no step waits for blocks."""
    engine = make_engine(options=BLOCK_PREFIX_CACHE, max_blocks_per_layer=12)
    engine.generate([tuple(range(at, at + 8)) for at in (50, 60, 70, 80, 90)], SamplingParams(1))
    assert engine.stats().free_blocks == 12 - 10
    ids = add_all(engine, TWO, [GREEDY, GREEDY])
    outputs: list[StepOutput] = []
    while not outputs or engine.scheduler.running:
        outputs += engine.step()
        assert engine.readback.is_ahead or not engine.scheduler.running
    assert engine.stats().prefix_evictions > 0
    handed_out = tokens_by_request(outputs)
    assert [handed_out[i] for i in ids] == TWO_TEXTS


# --- errors after a launch ---------------------------------------------------------------------------


def started(options, num_steps: int, block_size: int = 4) -> tuple[InferenceEngine, list[int], list]:
    """Three requests after so many steps, and what was handed out."""
    engine = make_engine(options=options, prefix_cache=False, block_size=block_size)
    ids = [engine.add_request(*each) for each in zip(PROMPTS[:3], EACH_PARAMS, strict=False)]
    return engine, ids, [output for _ in range(num_steps) for output in engine.step()]


def assert_all_get_their_tokens(engine: InferenceEngine, ids: list[int], outputs: list) -> None:
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in ids] == EXPECTED[: len(ids)]
    assert_no_block_is_lost(engine)


def held_by(engine: InferenceEngine) -> tuple[int, dict]:
    """Free blocks, and each running request's tokens, in the cache and out of it."""
    return engine.stats().free_blocks, {
        request.request_id: (session.num_tokens, list(request.token_ids))
        for request, session in engine.scheduler.running.items()
    }


@ahead
@pytest.mark.parametrize("num_steps", [0, 3])
def test_a_launch_whose_batch_cannot_be_noted_is_taken_back(monkeypatch, options, num_steps):
    """With nothing in flight, and behind a step that is, when a newcomer makes it another batch."""
    engine, ids, outputs = started(options, num_steps)
    ids.append(engine.add_request(PROMPTS[3], EACH_PARAMS[3]))
    with monkeypatch.context() as patch, pytest.raises(Boom):
        patch.setattr(overlap, "Batch", failing(overlap.Batch))
        while True:
            outputs += engine.step()
    engine.check_integrity()
    assert engine.readback.is_ahead == (num_steps > 0) and len(engine.scheduler.running) == 4
    for request, session in engine.scheduler.running.items():  # the newcomer is not in the step in flight
        was_there = num_steps > 0 and request.request_id != ids[3]
        assert session.num_tokens == request.num_tokens - 1 + was_there
    assert_all_get_their_tokens(engine, ids, outputs)


@ahead
def test_an_error_after_a_launch_has_counted_its_tokens_counts_them_back(monkeypatch, options):
    """As the handler of a signal may raise it, for which nothing waits."""

    class FailsAfterIt(defaultdict):
        def __setitem__(self, path, number):
            if path == "in_place":
                raise Boom
            super().__setitem__(path, number)

    engine, ids, outputs = started(options, num_steps=3)
    before = held_by(engine)
    with monkeypatch.context() as patch, pytest.raises(Boom):
        patch.setattr(engine.kv_manager, "append_paths", FailsAfterIt(int, engine.kv_manager.append_paths))
        engine.step()
    engine.check_integrity()
    assert held_by(engine) == before
    assert_all_get_their_tokens(engine, ids, outputs)


@ahead
@pytest.mark.parametrize("which", [0, 2])
def test_a_reading_that_fails_after_somebody_left_gives_nothing_back_to_them(monkeypatch, options, which):
    engine, ids, outputs = started(options, num_steps=3, block_size=1)
    gone = list(engine.scheduler.running.values())[which]
    engine.cancel(ids[which])
    ids += [engine.add_request(*each) for each in zip(PROMPTS[3:], EACH_PARAMS[3:], strict=True)]
    outputs += engine.step()  # their prefill, into blocks of who left
    with monkeypatch.context() as patch, pytest.raises(Boom):
        patch.setattr(TokenCopy, "read", failing(TokenCopy.read))
        engine.step()
    engine.check_integrity()
    assert gone.num_tokens == 0 and not any(gone.block_ids_per_layer)
    handed_out = tokens_by_request(outputs + run(engine))
    for i, expected in zip(ids, EXPECTED, strict=True):
        assert handed_out[i] == (expected[:3] if i == ids[which] else expected)
    assert_no_block_is_lost(engine)


# --- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_on_a_gpu_blocks_of_who_left_are_a_newcomers_at_once(tiny):
    """The step in flight still writes to them: before the newcomer's prefill, launched later, does."""
    params = [SamplingParams(20, stop_on_eos=False)] * len(TEXTS)
    expected = tokens_of(gpu_engine(tiny, PAGED_ENGINE, max_batch_size=4).generate(TEXTS, params))
    engine = gpu_engine(tiny, OVERLAP, max_batch_size=4, prefill_max_batch_size=4)
    for leave in range(1, 12):
        gone = add_all(engine, TEXTS[:4], params[:4])
        for _ in range(leave):
            engine.step()
        for request_id in gone:
            engine.cancel(request_id)
        ids = add_all(engine, TEXTS, params)
        handed_out = tokens_by_request(run(engine))
        assert [handed_out[i] for i in ids] == expected
    assert_no_block_is_lost(engine)


def test_after_an_idle_spell_no_step_of_those_who_ended_is_left():
    """Whoever comes next gets its tokens from its first decode step on."""
    first = tokens_alone((1, 2, 3), SamplingParams(8))
    eos = first[3]
    model = small_model(eos_token_id=eos)
    engine = make_engine(model, OVERLAP, prefix_cache=False)
    engine.add_request((1, 2, 3), SamplingParams(8))
    run(engine)
    steps = engine.stats().counters.decode_steps
    engine.add_request((1, 2, 3), SamplingParams(8))
    handed_out = [len(engine.step()) for _ in range(2)]
    assert handed_out == [1, 1]
    assert engine.stats().counters.decode_steps == steps + 1


# --- requests that go on together --------------------------------------------------------------------

LONG = 24


def decoding(options, num_steps: int, prompts=PROMPTS, params=GREEDY, **cache_options) -> InferenceEngine:
    """An engine that has decoded so many steps."""
    engine = make_engine(options=options, prefix_cache=False, **cache_options)
    for prompt in prompts:
        engine.add_request(prompt, replace(params, max_new_tokens=LONG))
    for _ in range(1 + num_steps):
        engine.step()
    return engine


@ahead
def test_a_tokens_time_is_within_the_step_that_handed_it_out(options):
    """Also where requests join and end, so that some tokens are handed out with a batch and some alone."""
    engine = make_engine(options=options, max_batch_size=3, prefix_cache=False)
    within, timings = {}, {}
    for number in range(9):
        params = replace(GREEDY, max_new_tokens=(3, 17, 8)[number % 3])
        engine.add_request(PROMPTS[number % len(PROMPTS)], params)
        for _ in range(4 if number < 8 else 80):
            begun = time.perf_counter()
            outputs = engine.step()
            for output in outputs:
                within.setdefault(output.request_id, []).append((begun, time.perf_counter()))
                if output.completion:
                    timings[output.request_id] = output.completion.timing.tokens
    assert len(timings) == 9
    for request_id, moments in timings.items():
        steps = zip(within[request_id], moments, strict=True)
        assert all(begun <= moment <= ended for (begun, ended), moment in steps)


@ahead
def test_a_block_that_somebody_shares_meanwhile_is_copied_before_it_is_written(options):
    engine = decoding(options, 3, block_size=64)
    expected = tokens_by_request(run(decoding(options, 3, block_size=64)))
    session = next(iter(engine.scheduler.running.values()))
    fork, num_tokens = session.fork(), session.num_tokens
    keys, values = fork.dense_kv()
    outputs = [output for _ in range(3) for output in engine.step()]
    assert session.block_ids_per_layer != fork.block_ids_per_layer
    assert all(
        torch.equal(old[:, :, : num_tokens - 1], new[:, :, : num_tokens - 1])  # one was in flight
        for old, new in zip((keys, values), fork.dense_kv(), strict=True)
    )
    fork.release()
    assert tokens_by_request(outputs + run(engine)) == expected
    assert_no_block_is_lost(engine)


def test_a_decode_step_passes_few_files():
    """Also one in which a block is full. The device's part is left out: it is the same on each rung."""
    engine = decoding(LADDER["14"].options, 3, PROMPTS[:3], block_size=8)
    routes: list[list[str]] = []

    def on_event(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        is_part = path.is_relative_to(ROOT / "labkit") and path.parent.name != "watch"
        if event == "call" and is_part and routes[-1][-1:] != [path.stem]:
            routes[-1].append(path.stem)

    with replaced(engine.decode_step, "device_step", lambda _: lambda n, *about: torch.zeros(n).long()):
        for _ in range(8):
            routes.append([])
            with profiled_by(on_event):
                engine.step()
    longest = max(routes, key=len)
    assert "block_books" in longest and len(set(longest)) <= 8 and len(longest) - 1 <= 15
    assert min(map(len, routes)) - 1 <= 12


# --- failures --------------------------------------------------------------------------------------


@ahead
def test_only_requests_whose_block_is_full_are_told_about(monkeypatch, options):
    engine = decoding(options, 3, [(1, 2, 3), (1, 2), (1,)], block_size=8)
    manager, slots, seen, sent = engine.decode_step.kv_manager, engine.decode_step.slots, [], []
    add_blocks, send_rows = manager.add_blocks, slots.send_rows

    def spy(sequences: list[list[list[int]]]) -> bool:
        seen.append(len(sequences))
        return add_blocks(sequences)

    def spy_on_rows(sessions: list[InferenceSession]) -> None:
        sent.append(len(sessions))
        send_rows(sessions)

    monkeypatch.setattr(manager, "add_blocks", spy)
    monkeypatch.setattr(slots, "send_rows", spy_on_rows)
    rooms = [s.num_tokens % 8 for s in engine.scheduler.running.values()]
    lookups = []
    for _ in range(8):
        seen.clear()
        engine.step()
        lookups.append(sum(seen))
    assert len(set(rooms)) == 3 and sorted(lookups) == [0] * 5 + [1] * 3
    assert sent == [1, 1, 1]  # the row of all tables in one message
