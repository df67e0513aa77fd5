"""Requests that go on together: the state that everybody sees, and what failures leave."""

import time
from dataclasses import replace
from functools import cache

import pytest
import torch
from helpers import (
    AHEAD,
    GREEDY,
    SEEDED,
    Boom,
    ahead,
    assert_no_block_is_lost,
    failing,
    make_engine,
    run,
    small_model,
    tokens_by_request,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import CacheConfig, InferenceEngine, SamplingParams, load_model
from labkit.engine import Completion, InferenceSession, StepOutput
from labkit.engine.step.staging import TokenCopy
from labkit.ladder import FUSED_AND_SPLIT, OVERLAP, PAGED_ENGINE

PROMPTS = [(1, 2, 3), tuple(range(20, 29)), (5, 6), (1, 2, 3, 4), (7,)]
LONG = 24


def decoding(options, num_steps: int, prompts=PROMPTS, params=GREEDY, **cache_options) -> InferenceEngine:
    """An engine that has decoded so many steps."""
    engine = make_engine(options=options, prefix_cache=False, **cache_options)
    for prompt in prompts:
        engine.add_request(prompt, replace(params, max_new_tokens=LONG))
    for _ in range(1 + num_steps):
        engine.step()
    return engine


@pytest.mark.slow
@ahead
@pytest.mark.parametrize("block_size", [2, 4, 64])
def test_between_two_steps_all_that_the_host_knows_is_up_to_date(options, block_size):
    engine = decoding(options, 0, block_size=block_size)
    at_once = decoding(FUSED_AND_SPLIT, 0, block_size=block_size)
    for _ in range(11):
        engine.step()
        at_once.step()
        engine.check_integrity()
        for request, other in zip(engine.scheduler.running, at_once.scheduler.running, strict=True):
            assert request.output_token_ids == other.output_token_ids
            assert len(request.token_times) == len(request.output_token_ids)
            assert engine.scheduler.running[request].num_tokens == request.num_tokens  # one is in flight
    paths, num_tables = engine.stats().append_paths, engine.kv_manager.num_tables
    counted = paths["in_place"] + paths.get("boundary", 0)
    assert counted == 12 * len(PROMPTS) * num_tables  # the first launch was behind the prefill


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


@ahead
def test_a_cancelled_request_has_all_tokens_that_were_handed_out(options):
    engine = make_engine(options=options, prefix_cache=False)
    ids = [engine.add_request(prompt, replace(GREEDY, max_new_tokens=LONG)) for prompt in PROMPTS]
    handed_out = tokens_by_request([output for _ in range(8) for output in engine.step()])
    for request_id in ids[::2]:
        completion = engine.cancel(request_id)
        assert completion.token_ids == handed_out[request_id] and len(completion.token_ids) == 8
        assert len(completion.timing.tokens) == 8
        engine.check_integrity()
    run(engine)
    assert_no_block_is_lost(engine)


@cache
def alone(prompt: tuple[int, ...], params: SamplingParams, eos: int | None) -> Completion:
    engine = make_engine(small_model(eos_token_id=eos), PAGED_ENGINE, prefix_cache=False)
    (completion,) = engine.generate([prompt], params)
    return completion


EOS = alone(PROMPTS[0], replace(GREEDY, max_new_tokens=LONG), None).token_ids[9]
EVENTS = st.one_of(
    st.tuples(st.just("steps"), st.integers(1, 9)),
    st.tuples(st.just("add"), st.integers(0, len(PROMPTS) - 1), st.integers(1, LONG), st.booleans()),
    st.tuples(st.just("cancel"), st.integers(0, 20)),
    st.tuples(st.just("generate"), st.integers(0, len(PROMPTS) - 1)),
    st.tuples(st.just("look")),
)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    events=st.lists(EVENTS, max_size=14),
    options=st.sampled_from(list(AHEAD.values())),
    block_size=st.sampled_from([1, 3, 4, 64]),
    spare_blocks=st.sampled_from([0, 3, 60]),
    prefix_cache=st.booleans(),
    eos=st.sampled_from([None, EOS]),
)
def test_whatever_happens_between_two_steps_everybody_gets_rung_00s_tokens(
    events, options, block_size, spare_blocks, prefix_cache, eos
):
    engine = make_engine(
        small_model(eos_token_id=eos),
        options,
        block_size=block_size,
        max_blocks_per_layer=-(-(len(PROMPTS[1]) + LONG) // block_size) + spare_blocks,
        prefix_cache=prefix_cache,
    )
    asked: dict[int, tuple] = {}
    done: dict[int, Completion] = {}
    outputs: list[StepOutput] = []
    for what, *about in [*events, ("steps", 500)]:
        if what == "add":
            prompt, params = (
                PROMPTS[about[0]],
                replace(SEEDED if about[2] else GREEDY, max_new_tokens=about[1]),
            )
            asked[engine.add_request(prompt, params)] = prompt, params
        elif what == "cancel" and set(asked) - set(done):
            request_id = sorted(set(asked) - set(done))[about[0] % len(set(asked) - set(done))]
            completion = engine.cancel(request_id)
            expected = alone(*asked[request_id], eos).token_ids
            assert completion.token_ids == expected[: len(completion.token_ids)]
            done[request_id] = completion
        elif what == "generate":
            prompt = PROMPTS[about[0]]
            (completion,) = engine.generate([prompt], GREEDY)
            assert completion.token_ids == alone(prompt, GREEDY, eos).token_ids
            outputs += engine.step()  # what its steps made for the others
            done |= {o.request_id: o.completion for o in outputs if o.completion}
        elif what == "look":
            engine.check_integrity()
        elif what == "steps":
            for _ in range(about[0]):
                if engine.has_work:
                    outputs += engine.step()
            done |= {o.request_id: o.completion for o in outputs if o.completion}
    assert set(done) == set(asked)
    handed_out = tokens_by_request(outputs)
    for request_id, completion in done.items():
        expected = alone(*asked[request_id], eos)
        assert handed_out.get(request_id, ()) == completion.token_ids[: len(handed_out.get(request_id, ()))]
        if completion.finish_reason != "cancelled":
            assert completion.token_ids == handed_out[request_id] == expected.token_ids
            assert completion.finish_reason is expected.finish_reason
            assert len(completion.timing.tokens) == len(completion.token_ids)
    assert_no_block_is_lost(engine)


# --- failures --------------------------------------------------------------------------------------

PLACES = {
    "making room": lambda engine: (engine.decode_step.kv_manager, "reserve_token_batch"),
    "sending rows": lambda engine: (engine.decode_step.slots, "send_rows"),
    "the device's work": lambda engine: (engine.decode_step, "device_step"),
    "when the device has done it all": lambda engine: (engine.decode_step.pinned_tokens, "start_copy"),
    "reading": lambda engine: (TokenCopy, "read"),
}


@pytest.mark.slow
@ahead
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("at_call", [0, 1, 4])
def test_a_step_that_fails_leaves_the_state_whole(monkeypatch, options, place, at_call):
    """Requests of five lengths in blocks of four: nearly every step has one whose block is full."""
    whole = decoding(options, 3, block_size=4)
    expected = {r.request_id: tuple(r.output_token_ids) for r in whole.scheduler.running}
    rest = tokens_by_request(run(whole))
    engine = decoding(options, 3, block_size=4)
    owner, name = PLACES[place](engine)
    outputs = []
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing(getattr(owner, name), at_call))
        with pytest.raises(Boom):
            for _ in range(LONG):
                outputs += engine.step()
    engine.check_integrity()
    made = tokens_by_request(outputs)
    for request in engine.scheduler.running:
        expected_now = (*expected[request.request_id], *made.get(request.request_id, ()))
        assert tuple(request.output_token_ids) == expected_now
    assert tokens_by_request(outputs + run(engine)) == rest
    assert_no_block_is_lost(engine)


@ahead
def test_only_requests_whose_block_is_full_are_told_about(monkeypatch, options):
    engine = decoding(options, 3, [(1, 2, 3), (1, 2), (1,)], block_size=8)
    manager, slots, seen, sent = engine.decode_step.kv_manager, engine.decode_step.slots, [], []
    reserve, send_rows = manager.reserve_token_batch, slots.send_rows

    def spy(table_idx: int, block_ids_list: list[list[int]]) -> list[int]:
        seen.append((table_idx, len(block_ids_list)))
        return reserve(table_idx, block_ids_list)

    def spy_on_rows(sessions: list[InferenceSession]) -> None:
        sent.append(len(sessions))
        send_rows(sessions)

    monkeypatch.setattr(manager, "reserve_token_batch", spy)
    monkeypatch.setattr(slots, "send_rows", spy_on_rows)
    rooms = [s.num_tokens % 8 for s in engine.scheduler.running.values()]
    lookups = []
    for _ in range(8):
        seen.clear()
        engine.step()
        lookups.append(sum(n for table_idx, n in seen if table_idx == 0))
    assert len(set(rooms)) == 3 and sorted(lookups) == [0] * 5 + [1] * 3
    assert sent == [1, 1, 1]  # the row of all tables in one message


# --- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("at_call", [0, 3])
def test_on_a_gpu_a_step_that_fails_loses_nothing(monkeypatch, place: str, at_call: int):
    model = load_model("data/tiny-gpt2")
    texts = ["To be, or not to be", "O", "JULIET:\n", "Exit"]
    params = SamplingParams(LONG, stop_on_eos=False)
    settings = {
        "device": "cuda",
        "dtype": torch.float32,
        "cache": CacheConfig(block_size=4, prefix_cache=False),
    }
    expected = InferenceEngine(model, PAGED_ENGINE, **settings).generate(texts, params)
    engine = InferenceEngine(model, OVERLAP, **settings)
    ids = [engine.add_request(text, params) for text in texts]
    outputs = [output for _ in range(5) for output in engine.step()]
    owner, name = PLACES[place](engine)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing(getattr(owner, name), at_call))
        with pytest.raises(Boom):
            for _ in range(LONG):
                outputs += engine.step()
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in ids] == [completion.token_ids for completion in expected]
    assert_no_block_is_lost(engine)
