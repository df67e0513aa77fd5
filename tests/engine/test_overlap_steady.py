"""Steady batches: the state that everybody sees, failures, and what a step costs."""

import sys
from collections import Counter
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
    tokens_alone,
    tokens_by_request,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import LADDER, CacheConfig, InferenceEngine, SamplingParams, load_model
from labkit.engine import Completion, InferenceSession, StepOutput
from labkit.engine.step.staging import TokenCopy
from labkit.ladder import OVERLAP, PAGED_ENGINE
from labkit.watch import count_launches, record_flights

PROMPTS = [(1, 2, 3), tuple(range(20, 29)), (5, 6), (1, 2, 3, 4), (7,)]
LONG = 24


def decoding(options, num_steps: int, prompts=PROMPTS, params=GREEDY, **cache_options) -> InferenceEngine:
    """An engine that has decoded so many steps, and has not been flushed since."""
    engine = make_engine(options=options, prefix_cache=False, **cache_options)
    for prompt in prompts:
        engine.add_request(prompt, replace(params, max_new_tokens=LONG))
    for _ in range(1 + num_steps):
        engine.step()
    return engine


def state_of(engine: InferenceEngine) -> list[tuple]:
    """Everything that is kept about each running request."""
    manager, running = engine.kv_manager, engine.scheduler.running
    return [
        (
            request.request_id,
            list(request.output_token_ids),
            len(request.token_times),
            session.num_tokens,
            [[manager.info(i) for i in ids] for ids in session.block_ids_per_layer],
        )
        for request, session in running.items()
    ]


# --- the state that is seen from outside -----------------------------------------------------------


@pytest.mark.slow
@ahead
@pytest.mark.parametrize("num_steps", [9, 10])
def test_who_is_admitted_does_not_depend_on_whether_somebody_looked(options, num_steps):
    """A newcomer of seven blocks is measured against the blocks that are left, and those that the running
    need next, not against what they had when they became a steady batch."""
    seen = []
    for looks in (False, True):
        engine = decoding(options, num_steps, PROMPTS[:1], block_size=2, max_blocks_per_layer=14)
        engine.add_request(tuple(range(30, 44)), replace(GREEDY, max_new_tokens=6))
        steps = []
        while engine.has_work:
            if looks:
                state_of(engine)
            outputs, stats = engine.step(), engine.stats()
            now = stats.waiting, stats.running, stats.free_blocks, stats.counters.preemptions
            steps.append((now, [(output.request_id, output.token_id) for output in outputs]))
        seen.append(steps)
    assert seen[0] == seen[1]
    assert (seen[0][0][0][0] == 1) == (
        num_steps >= 10
    )  # seven blocks are left, of which the next token takes one


@pytest.mark.slow
@ahead
@pytest.mark.parametrize("block_size", [2, 4, 64])
@pytest.mark.parametrize("num_steps", [1, 2, 3, 9])
def test_whoever_looks_finds_the_state_as_if_every_step_had_been_flushed(options, block_size, num_steps):
    looked_at = decoding(options, 0, block_size=block_size)
    for _ in range(num_steps):
        looked_at.step()
        state_of(looked_at)
    engine = decoding(options, num_steps, block_size=block_size)
    assert engine.stats().free_blocks == looked_at.stats().free_blocks
    assert state_of(engine) == state_of(looked_at)
    engine.check_integrity()
    for request in engine.scheduler.running:
        assert request.token_times == sorted(request.token_times)
    assert tokens_by_request(run(engine)) == tokens_by_request(run(looked_at))
    assert_no_block_is_lost(engine)


@ahead
def test_whoever_asks_for_the_pool_first_finds_its_lengths_up_to_date(options):
    looked_at = decoding(options, 0, block_size=4)
    for _ in range(6):
        looked_at.step()
        state_of(looked_at)
    pool = decoding(options, 6, block_size=4).kv_manager
    assert torch.equal(pool.live_slots(), looked_at.kv_manager.live_slots())


def test_a_steady_batch_goes_on_while_a_prompt_passes_in_chunks():
    engine = decoding(LADDER["13"].options, 3, prefill_chunk_tokens=3)
    batch = engine.readback._steady
    prompt = tuple(range(30, 42))
    newcomer = engine.add_request(prompt, GREEDY)
    outputs, num_chunks = [], 0
    while not engine.stats().joining or num_chunks < 4:
        outputs += engine.step()
        num_chunks += 1
        assert engine.readback._steady is batch and engine.stats().joining == 1
    outputs += run(engine)
    assert tuple(tokens_by_request(outputs)[newcomer]) == tokens_alone(prompt, GREEDY)
    undisturbed = decoding(LADDER["13"].options, 3)
    expected = tokens_by_request(run(undisturbed))
    made = tokens_by_request(outputs)
    assert {request_id: made[request_id] for request_id in expected} == expected
    assert_no_block_is_lost(engine)


@ahead
def test_looking_twice_counts_nothing_twice(options):
    engine = decoding(options, 5)
    assert state_of(engine) == state_of(engine)


@ahead
def test_paths_are_counted_as_if_every_step_had_been_flushed(options):
    looked_at = decoding(options, 0, block_size=4)
    for _ in range(9):
        looked_at.step()
        state_of(looked_at)
    assert decoding(options, 9, block_size=4).stats().append_paths == looked_at.stats().append_paths


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


@ahead
def test_nothing_is_launched_behind_anybodys_last_token(options):
    engine = make_engine(options=options, prefix_cache=False)
    limits = [3, 9, 9, 17, 12]
    for prompt, limit in zip(PROMPTS, limits, strict=True):
        engine.add_request(prompt, replace(GREEDY, max_new_tokens=limit))
    with record_flights(engine) as watched:
        while engine.has_work:
            engine.step()
    assert watched.tokens_launched == watched.tokens_handed_out == sum(limits) - len(limits)


@ahead
def test_a_steady_batch_without_blocks_waits_for_the_step_in_flight(options):
    """Two requests of four tokens, four blocks of four: the ninth token of both has none."""
    engine = make_engine(options=options, prefix_cache=False, max_blocks_per_layer=4)
    ids = [engine.add_request(prompt, GREEDY) for prompt in ((1, 2, 3, 4), (7, 8, 9, 10))]
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    assert engine.stats().counters.preemptions > 0
    expected = [alone(prompt, GREEDY, None).token_ids for prompt in ((1, 2, 3, 4), (7, 8, 9, 10))]
    assert [tokens_by_request(outputs)[i] for i in ids] == expected


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
def test_whatever_happens_between_steady_batches_everybody_gets_rung_00s_tokens(
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
def test_a_steady_step_that_fails_leaves_the_state_whole(monkeypatch, options, place, at_call):
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


# --- what a step costs -----------------------------------------------------------------------------


def python_calls(engine: InferenceEngine) -> Counter[str]:
    """The functions, Python's own among them, that one step calls, by name."""
    calls: Counter[str] = Counter()

    def note(frame, event: str, arg) -> None:
        if event == "call":
            calls[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            calls[arg.__qualname__] += 1

    sys.setprofile(note)
    try:
        engine.step()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("params", [GREEDY, SEEDED])
def test_a_steady_step_calls_the_same_functions_for_few_and_for_many(params):
    few, many = (decoding(OVERLAP, 4, [(1, 2, 3)] * B, params, block_size=64) for B in (2, 8))
    step_of_few, step_of_many = (python_calls(engine) for engine in (few, many))
    del few, many
    assert step_of_few["ReadOneBehind._launch_steady"] == 1
    # The model's own work on a CPU, the sampler's and the attention's, is the device's on a GPU.
    host = (
        "SteadyBatch.",
        "ReadOneBehind.",
        "InferenceEngine.",
        "ResidentDecodeStep.",
        "StepInFlight.",
        "DeviceSlots.",
        "SlotState.",
    )
    counted = [
        {
            name: n
            for name, n in calls.items()
            if name.startswith((*host, "MutableInfo", "KVBlock", "list.", "dict."))
        }
        for calls in (step_of_few, step_of_many)
    ]
    assert counted[0] == counted[1]


@ahead
def test_who_goes_on_behind_a_request_that_ends_is_a_steady_batch_at_once(options):
    """Its last token is read while the others' next step, which was launched for them alone, is in flight."""
    engine = make_engine(options=options, prefix_cache=False, block_size=4)
    params = [replace(GREEDY, max_new_tokens=limit) for limit in (4, 12, 7)]
    for prompt, each in zip(PROMPTS, params, strict=False):
        engine.add_request(prompt, each)
    outputs = []
    with count_launches(engine) as counts:
        while engine.has_work:  # and nobody looks, which would end a steady batch
            outputs += engine.step()
    made = tokens_by_request(outputs)
    assert counts == {"walked": 3, "in a steady batch": 8}  # eleven: the first token is the prompt's
    assert {i: len(token_ids) for i, token_ids in made.items()} == {0: 4, 1: 12, 2: 7}
    alone = make_engine(prefix_cache=False).generate(PROMPTS[:3], params)
    assert [made[i] for i in range(3)] == [completion.token_ids for completion in alone]
    assert_no_block_is_lost(engine)


@ahead
@pytest.mark.parametrize("num_steps", range(3, 8))
def test_a_request_may_be_cancelled_around_the_end_of_another(options, num_steps):
    """So that nothing that was deferred for it, or for those who go on, is lost."""
    engine = make_engine(options=options, prefix_cache=False, block_size=4)
    params = [replace(GREEDY, max_new_tokens=limit) for limit in (5, 12, 12)]
    ids = [engine.add_request(prompt, each) for prompt, each in zip(PROMPTS, params, strict=False)]
    made = [output for _ in range(num_steps) for output in engine.step()]
    completion = engine.cancel(ids[1])
    engine.check_integrity()
    made = tokens_by_request([*made, *run(engine)])
    alone = make_engine(prefix_cache=False).generate(PROMPTS[:3], params)
    expected = [each.token_ids for each in alone]
    assert [made[ids[0]], made[ids[2]]] == [expected[0], expected[2]]
    assert completion.token_ids == expected[1][: len(completion.token_ids)]
    assert len(completion.token_ids) >= num_steps - 1
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
    rooms = [s.num_tokens % 8 for s in engine._scheduler.running.values()]
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
def test_on_a_gpu_a_steady_step_that_fails_loses_nothing(monkeypatch, place: str, at_call: int):
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
    assert engine.readback._steady is not None
    owner, name = PLACES[place](engine)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing(getattr(owner, name), at_call))
        with pytest.raises(Boom):
            for _ in range(LONG):
                outputs += engine.step()
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in ids] == [completion.token_ids for completion in expected]
    assert_no_block_is_lost(engine)
