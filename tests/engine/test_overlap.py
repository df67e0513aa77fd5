"""Tokens that are read one step behind: what is on its way, who gets it, and what failures leave."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from helpers import (
    AHEAD,
    CONFIG,
    GREEDY,
    SEEDED,
    Boom,
    ahead,
    assert_no_block_is_lost,
    failing,
    make_engine,
    run,
    small_model,
    spoil_keys,
    tokens_alone,
    tokens_by_request,
    tokens_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import CacheConfig, FinishReason, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine import Completion
from labkit.engine.overlap import ReadAtOnce, ReadOneBehind
from labkit.engine.request import Request, RunningRequests
from labkit.engine.step import staging
from labkit.engine.step.resident import StepInFlight
from labkit.engine.step.staging import TokenCopy
from labkit.ladder import FUSED_AND_SPLIT, OVERLAP, PAGED_ENGINE

PROMPTS = [(1, 2, 3), tuple(range(20, 29)), (5, 6), (1, 2, 3, 4), (7,)]
EACH_PARAMS = [GREEDY, SEEDED, GREEDY, SEEDED, GREEDY]
EXPECTED = [tokens_alone(prompt, params) for prompt, params in zip(PROMPTS, EACH_PARAMS, strict=True)]


class Watch:
    """Notes every launch and every reading; at each launch, that nobody in it has enough tokens already."""

    def __init__(self, engine: InferenceEngine) -> None:
        self.engine = engine
        self.launches: list[list[int]] = []  # whom each was for
        self.handed_out: list[list[int]] = []  # whose tokens each reading gave
        self._start, self._next_tokens = engine.decode_step.start, engine.readback.next_tokens
        engine.decode_step.start, engine.readback.next_tokens = self.start, self.next_tokens

    def start(self, requests: list[Request], *about: object) -> StepInFlight:
        in_flight = in_flight_of(self.engine)
        on_their_way = in_flight.sessions if in_flight else []
        for request in requests:
            assert request.completion is None
            session = self.engine.scheduler.running[request]
            made = len(request.output_token_ids) + (session in on_their_way)
            assert made < request.params.max_new_tokens
        step = self._start(requests, *about)
        self.launches.append([request.request_id for request in requests])
        return step

    def next_tokens(self, running: RunningRequests):
        next_tokens = self._next_tokens(running)
        for request in next_tokens.requests:
            assert request in running and request.completion is None
        self.handed_out.append([request.request_id for request in next_tokens.requests])
        return next_tokens

    def launches_of(self, request_id: int) -> int:
        return sum(request_id in launch for launch in self.launches)


def in_flight_of(engine: InferenceEngine) -> StepInFlight | None:
    assert isinstance(engine.readback, ReadOneBehind)
    return engine.readback.in_flight


def add_all(engine: InferenceEngine, prompts=PROMPTS, each_params=EACH_PARAMS) -> list[int]:
    return [engine.add_request(*each) for each in zip(prompts, each_params, strict=True)]


def long(num_tokens: int, params: SamplingParams = GREEDY) -> SamplingParams:
    return replace(params, max_new_tokens=num_tokens)


def held_by(engine: InferenceEngine) -> tuple[int, dict]:
    """Free blocks, and each running request's tokens, in the cache and out of it."""
    return engine.stats().free_blocks, {
        request.request_id: (session.num_tokens, list(request.token_ids))
        for request, session in engine.scheduler.running.items()
    }


# --- one step ahead --------------------------------------------------------------------------------


@ahead
def test_after_a_step_exactly_one_more_is_in_flight(options):
    engine = make_engine(options=options, prefix_cache=False)
    watch = Watch(engine)
    ids = add_all(engine, PROMPTS[:3], [long(12), long(12, SEEDED), long(12)])
    engine.step()  # prefill, and behind it the first launch
    assert engine.readback.is_ahead and watch.launches == [ids]
    for num_decoded in range(1, 9):
        outputs = engine.step()
        assert [output.request_id for output in outputs] == ids
        assert watch.launches == [ids] * (num_decoded + 1)
        assert watch.handed_out == [ids] * num_decoded
        assert engine.readback.is_ahead
        running = engine.scheduler.running
        assert in_flight_of(engine).requests == list(running)
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
    watch = Watch(engine)
    first = engine.add_request(PROMPTS[0], long(12))
    engine.step(), engine.step()
    in_flight = in_flight_of(engine)
    second = engine.add_request(PROMPTS[2], long(12))
    outputs = list(engine.step())  # prefill
    assert [output.request_id for output in outputs] == [second]
    assert in_flight_of(engine) is in_flight
    assert [output.request_id for output in engine.step()] == [first]
    assert watch.launches == [[first], [first], [first, second]]
    assert [output.request_id for output in engine.step()] == [first, second]


@ahead
@pytest.mark.parametrize("num_tokens", [1, 2, 3, 8])
def test_no_step_is_launched_for_whom_the_last_token_is_on_its_way(options, num_tokens: int):
    engine = make_engine(options=options, prefix_cache=False)
    watch = Watch(engine)
    request_id = engine.add_request(PROMPTS[0], long(num_tokens))
    made = tokens_by_request(run(engine))[request_id]
    assert made == tokens_alone(PROMPTS[0], long(num_tokens))
    assert watch.launches == [[request_id]] * (num_tokens - 1)  # the first is the prefill's
    assert not engine.readback.is_ahead and not engine.has_work


@ahead
def test_each_of_a_batch_is_launched_for_as_often_as_it_has_tokens(options):
    engine = make_engine(options=options)
    watch = Watch(engine)
    each = [long(n, params) for n, params in zip((1, 7, 2, 5, 9), EACH_PARAMS, strict=True)]
    ids = add_all(engine, PROMPTS, each)
    outputs = run(engine)
    handed_out = tokens_by_request(outputs)
    for request_id, prompt, params in zip(ids, PROMPTS, each, strict=True):
        assert handed_out[request_id] == tokens_alone(prompt, params)
        assert watch.launches_of(request_id) == params.max_new_tokens - 1
    completions = [output.completion for output in outputs if output.completion]
    assert all(completion.finish_reason is FinishReason.LENGTH for completion in completions)
    assert_no_block_is_lost(engine)


def test_a_step_that_is_read_at_once_is_never_ahead():
    engine = make_engine(options=FUSED_AND_SPLIT, prefix_cache=False)
    assert isinstance(engine.readback, ReadAtOnce)
    ids = add_all(engine)
    outputs = []
    while engine.has_work:
        outputs += engine.step()
        assert not engine.readback.is_ahead
    engine.readback.drop()  # nothing
    handed_out = tokens_by_request(outputs)
    assert [handed_out[i] for i in ids] == EXPECTED


# --- tokens that nobody gets -----------------------------------------------------------------------


@cache
def alone(prompt: tuple[int, ...], params: SamplingParams, eos_token_id: int | None) -> Completion:
    """What rung 00 makes of a request by itself."""
    engine = make_engine(small_model(eos_token_id=eos_token_id), PAGED_ENGINE, prefix_cache=False)
    (completion,) = engine.generate([prompt], params)
    return completion


def assert_is(completion: Completion, expected: Completion) -> None:
    assert completion.token_ids == expected.token_ids
    assert completion.finish_reason is expected.finish_reason
    assert completion.text == expected.text and completion.error is None


@pytest.mark.slow
@ahead
@pytest.mark.parametrize("place", range(len(EXPECTED[0])))
def test_the_token_behind_the_end_of_a_text_reaches_nobody(options, place: int):
    """Wherever the end is: the host learns of it when the next step is on its way."""
    eos = EXPECTED[0][place]
    place = EXPECTED[0].index(eos)  # it may have come before
    engine = make_engine(small_model(eos_token_id=eos), options, prefix_cache=False)
    watch = Watch(engine)
    ids = add_all(engine, PROMPTS[:3], EACH_PARAMS[:3])
    outputs = run(engine)
    completions = {output.request_id: output.completion for output in outputs if output.completion}
    for request_id, prompt, params in zip(ids, PROMPTS, EACH_PARAMS, strict=False):
        assert_is(completions[request_id], alone(prompt, params, eos))
        assert tokens_by_request(outputs)[request_id] == completions[request_id].token_ids
    ended = completions[ids[0]]
    assert ended.finish_reason is FinishReason.STOP
    assert ended.token_ids == EXPECTED[0][: place + 1]
    # One launch too many, but where the end was the last token anyway, or the prefill's.
    assert watch.launches_of(ids[0]) == (0 if place == 0 else min(place + 1, GREEDY.max_new_tokens - 1))
    assert sum(ids[0] in reading for reading in watch.handed_out) == place
    assert_no_block_is_lost(engine)


@ahead
@pytest.mark.parametrize("decode_first", [False, True])
def test_a_step_of_a_text_that_has_ended_is_dropped_and_disturbs_nobody_later(options, decode_first):
    eos = EXPECTED[0][3]
    assert EXPECTED[0].index(eos) == 3
    engine = make_engine(small_model(eos_token_id=eos), options, decode_first=decode_first)
    watch = Watch(engine)
    for _ in range(3):
        (completion,) = engine.generate([PROMPTS[0]], GREEDY)
        assert completion.token_ids == EXPECTED[0][:4]
        assert not engine.readback.is_ahead and not engine.has_work
        engine.check_integrity()
    assert_is(engine.generate([PROMPTS[1]], SEEDED)[0], alone(PROMPTS[1], SEEDED, eos))
    given = [request_id for reading in watch.handed_out for request_id in reading]
    assert all(given.count(request_id) == 3 for request_id in range(3))
    assert_no_block_is_lost(engine)


@pytest.mark.slow
@ahead
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("num_steps", [1, 2, 4])
def test_the_token_of_who_was_cancelled_reaches_nobody(options, num_steps: int, which: int):
    """Its blocks are a newcomer's at once, though a step that writes to them is in flight."""
    engine = make_engine(options=options, prefix_cache=False, max_blocks_per_layer=9)
    watch = Watch(engine)
    ids = add_all(engine, PROMPTS[:3], EACH_PARAMS[:3])
    outputs = [output for _ in range(num_steps) for output in engine.step()]
    assert engine.readback.is_ahead
    completion = engine.cancel(ids[which])
    assert completion.finish_reason is FinishReason.CANCELLED
    assert completion.token_ids == EXPECTED[which][:num_steps]
    engine.check_integrity()
    read_before = len(watch.handed_out)
    newcomers = add_all(engine, PROMPTS[3:], EACH_PARAMS[3:])
    handed_out = tokens_by_request(outputs + run(engine))
    for i, expected in zip([*ids, *newcomers], EXPECTED, strict=True):
        assert handed_out[i] == (expected[:num_steps] if i == ids[which] else expected)
    assert all(ids[which] not in reading for reading in watch.handed_out[read_before:])
    assert_no_block_is_lost(engine)


@ahead
@pytest.mark.parametrize("which", [0, 1, 2])
def test_the_token_of_who_was_preempted_reaches_nobody_and_is_made_again(options, which: int):
    """No engine preempts while a step is in flight; whoever did would take nothing from anybody."""
    engine = make_engine(options=options, prefix_cache=False)
    watch = Watch(engine)
    ids = add_all(engine, PROMPTS[:3], EACH_PARAMS[:3])
    outputs = [output for _ in range(3) for output in engine.step()]
    assert engine.readback.is_ahead
    request = list(engine.scheduler.running)[which]
    engine.scheduler.put_back([request])
    read_before = len(watch.handed_out)
    outputs += engine.step()  # its prefill: a token of its own, and of another session
    assert engine.scheduler.running[request] not in in_flight_of(engine).sessions
    outputs += engine.step()
    assert watch.handed_out[read_before:] == [[i for i in ids if i != ids[which]]]
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in ids] == EXPECTED[:3]
    assert_no_block_is_lost(engine)


@pytest.mark.slow
@ahead
@pytest.mark.parametrize("decode_first", [False, True])
@pytest.mark.parametrize("num_steps", [2, 3, 5])
def test_when_all_were_cancelled_the_next_requests_are_unaffected(
    options, num_steps: int, decode_first: bool
):
    engine = make_engine(
        options=options, prefix_cache=False, max_blocks_per_layer=9, decode_first=decode_first
    )
    watch = Watch(engine)
    for _ in range(2):
        ids = add_all(engine, PROMPTS[:3], EACH_PARAMS[:3])
        for _ in range(num_steps):
            engine.step()
        assert engine.readback.is_ahead
        for request_id in ids:
            engine.cancel(request_id)
        assert not engine.has_work
        assert_no_block_is_lost(engine)
        read_before = len(watch.handed_out)
        ids = add_all(engine)
        handed_out = tokens_by_request(run(engine))
        assert [handed_out[i] for i in ids] == EXPECTED
        assert {i for reading in watch.handed_out[read_before:] for i in reading} == set(ids)
    assert_no_block_is_lost(engine)


def test_a_step_in_which_nobody_runs_drops_what_is_in_flight():
    engine = make_engine(options=OVERLAP, decode_first=True)
    request_id = engine.add_request(PROMPTS[0], GREEDY)
    engine.step(), engine.step()
    assert engine.readback.is_ahead
    engine.cancel(request_id)
    assert not engine.step()
    assert not engine.readback.is_ahead


@ahead
def test_a_stream_that_is_left_takes_its_token_with_it(options):
    engine = make_engine(options=options)
    chunks = engine.stream(PROMPTS[0], GREEDY)
    received = [next(chunks).token_ids for _ in range(3)]
    assert tuple(token_id for each in received for token_id in each) == EXPECTED[0][:3]
    assert engine.readback.is_ahead
    chunks.close()
    assert not engine.has_work
    assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED
    assert_no_block_is_lost(engine)


NEVER_MADE = min(set(range(CONFIG.vocab_size)).difference(*EXPECTED))


@pytest.mark.slow
@ahead
@pytest.mark.parametrize("eos", [None, NEVER_MADE])
@pytest.mark.parametrize("broken", [0, 1, 2])
@pytest.mark.parametrize("num_made", [1, 3])
def test_a_request_whose_logits_are_no_numbers_ends_alone(options, num_made: int, broken: int, eos):
    """A step behind: the token on its way when its keys break is still a good one."""
    engine = make_engine(small_model(eos_token_id=eos), options, prefix_cache=False)
    ids = add_all(engine, PROMPTS[:3], EACH_PARAMS[:3])
    outputs = [output for _ in range(num_made) for output in engine.step()]
    num_good = num_made + engine.readback.is_ahead
    spoil_keys(engine, list(engine.scheduler.running.values())[broken], place=0)
    outputs += run(engine)
    completions = {output.request_id: output.completion for output in outputs if output.completion}
    failed = completions.pop(ids[broken])
    assert failed.finish_reason is FinishReason.ERROR
    assert failed.error == "the model's logits are not finite numbers"
    assert failed.token_ids == EXPECTED[broken][:num_good]
    for i in set(range(3)) - {broken}:
        assert completions[ids[i]].token_ids == EXPECTED[i]
    assert_no_block_is_lost(engine)
    assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED


# --- failures --------------------------------------------------------------------------------------

LAUNCHING = {  # places in a launch
    "making room": lambda engine: (engine.kv_manager, "reserve_token_batch"),
    "telling the device who runs": lambda engine: (engine.decode_step.slots, "update"),
    "the device's work": lambda engine: (engine.decode_step, "device_step"),
    "when the device has done it all": lambda engine: (engine.decode_step.pinned_tokens, "start_copy"),
}

# Of them those that every launch has, and not just that of requests who were not together before.
TO_GO_ON = [place for place in LAUNCHING if place != "telling the device who runs"]


def started(options, num_steps: int, block_size: int = 4) -> tuple[InferenceEngine, list[int], list]:
    """Three requests after so many steps, and what was handed out."""
    engine = make_engine(options=options, prefix_cache=False, block_size=block_size)
    ids = add_all(engine, PROMPTS[:3], EACH_PARAMS[:3])
    return engine, ids, [output for _ in range(num_steps) for output in engine.step()]


@ahead
@pytest.mark.parametrize(
    ("place", "at_call"),
    [
        (place, at_call)
        for place in LAUNCHING
        for at_call in (0, 1)
        if (place, at_call) != ("telling the device who runs", 1)  # it has just been told
    ],
)
def test_a_first_launch_that_fails_leaves_everything_as_it_was(monkeypatch, options, at_call, place):
    """at_call 0: the one behind the prefill. 1: that is on its way, to be read by the next step, and the one
    behind it fails. The prefill's tokens are handed out in any case."""
    engine, ids, outputs = started(options, num_steps=0)
    owner, name = LAUNCHING[place](engine)
    calls = at_call * (engine.kv_manager.num_tables if place == "making room" else 1)
    with monkeypatch.context() as patch, pytest.raises(Boom):
        patch.setattr(owner, name, failing(getattr(owner, name), calls))
        for _ in range(5):
            outputs += engine.step()
    engine.check_integrity()
    assert engine.readback.is_ahead == (at_call == 1)
    if at_call == 0:
        for request, session in engine.scheduler.running.items():
            assert session.num_tokens == request.num_tokens - 1
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in ids] == EXPECTED[:3]
    assert_no_block_is_lost(engine)


@ahead
@pytest.mark.parametrize("place", TO_GO_ON)
def test_a_launch_that_fails_keeps_the_step_in_flight_for_the_next_call(monkeypatch, options, place):
    engine, ids, outputs = started(options, num_steps=3)
    watch, in_flight, before = Watch(engine), in_flight_of(engine), held_by(engine)
    owner, name = LAUNCHING[place](engine)
    with monkeypatch.context() as patch, pytest.raises(Boom):
        patch.setattr(owner, name, failing(getattr(owner, name)))
        engine.step()
    engine.check_integrity()
    assert in_flight_of(engine) is in_flight and held_by(engine) == before
    # The device may be ahead of the host: nothing is launched before the host knows all tokens again.
    outputs += engine.step()
    assert watch.launches == [] and watch.handed_out == [ids] and not engine.readback.is_ahead
    assert tokens_by_request(outputs) == {i: e[:4] for i, e in zip(ids, EXPECTED, strict=False)}
    outputs += engine.step()
    assert watch.launches == [ids] * 2 and engine.readback.is_ahead
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in ids] == EXPECTED[:3]
    assert_no_block_is_lost(engine)


@ahead
@pytest.mark.parametrize("place", TO_GO_ON)
def test_launches_that_fail_again_and_again_lose_nothing(monkeypatch, options, place):
    engine, ids, outputs = started(options, num_steps=3)
    owner, name = LAUNCHING[place](engine)

    def fail(*args: object) -> None:
        raise Boom

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        for step in range(5):
            engine.check_integrity()  # which ends a steady batch, so that all of a launch is done again
            if step == 1:  # which only reads
                outputs += engine.step()
                continue
            with pytest.raises(Boom):
                engine.step()
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in ids] == EXPECTED[:3]
    assert_no_block_is_lost(engine)


@ahead
@pytest.mark.parametrize("num_steps", [3, 5])
@pytest.mark.parametrize("place", ["the device's work", "when the device has done it all"])
def test_after_a_launch_that_fails_while_nobody_looks_everybody_goes_on(
    monkeypatch, options, place, num_steps
):
    """Whoever looks ends a steady batch. Else the failure has to: the device may be ahead of it."""
    engine, ids, outputs = started(options, num_steps)
    owner, name = LAUNCHING[place](engine)
    with monkeypatch.context() as patch, pytest.raises(Boom):
        patch.setattr(owner, name, failing(getattr(owner, name)))
        engine.step()
    while engine.has_work:
        outputs += engine.step()
    handed_out = tokens_by_request(outputs)
    assert [handed_out[i] for i in ids] == EXPECTED[:3]
    assert_no_block_is_lost(engine)


@ahead
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("num_steps", [1, 3])
def test_a_reading_that_fails_takes_both_steps_back(monkeypatch, options, num_steps: int, times: int):
    engine, ids, outputs = started(options, num_steps)
    for _ in range(times):
        with monkeypatch.context() as patch, pytest.raises(Boom):
            patch.setattr(TokenCopy, "read", failing(TokenCopy.read))
            engine.step()
        engine.check_integrity()
        assert not engine.readback.is_ahead
        for request, session in engine.scheduler.running.items():  # neither of two tokens is counted
            assert session.num_tokens == request.num_tokens - 1
            assert not engine.decode_step.slots.knows(session)
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in ids] == EXPECTED[:3]
    assert_no_block_is_lost(engine)


@ahead
def test_a_reading_that_fails_takes_back_the_blocks_of_both_steps(monkeypatch, options):
    """Two tokens a block: of two steps, one needs a block of every request."""
    engine = make_engine(options=options, prefix_cache=False, block_size=2, decode_first=True)
    ids = add_all(engine, PROMPTS[:3], EACH_PARAMS[:3])
    outputs = list(engine.step())
    assert not engine.readback.is_ahead
    before = held_by(engine)
    with monkeypatch.context() as patch, pytest.raises(Boom):
        patch.setattr(TokenCopy, "read", failing(TokenCopy.read))
        engine.step()
    assert held_by(engine) == before
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in ids] == EXPECTED[:3]


@pytest.mark.slow
@ahead
@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_reading_that_fails_after_somebody_left_gives_nothing_back_to_them(
    monkeypatch, options, which: int, block_size: int
):
    engine, ids, outputs = started(options, num_steps=3, block_size=block_size)
    gone = list(engine.scheduler.running.values())[which]
    engine.cancel(ids[which])
    newcomers = add_all(engine, PROMPTS[3:], EACH_PARAMS[3:])
    outputs += engine.step()  # their prefill, into blocks of who left
    with monkeypatch.context() as patch, pytest.raises(Boom):
        patch.setattr(TokenCopy, "read", failing(TokenCopy.read))
        engine.step()
    engine.check_integrity()
    assert gone.num_tokens == 0 and not any(gone.block_ids_per_layer)
    handed_out = tokens_by_request(outputs + run(engine))
    for i, expected in zip([*ids, *newcomers], EXPECTED, strict=True):
        assert handed_out[i] == (expected[:3] if i == ids[which] else expected)
    assert_no_block_is_lost(engine)


@pytest.mark.slow
@ahead
@pytest.mark.parametrize("owner_and_name", [*LAUNCHING, "reading"])
@pytest.mark.parametrize("at_call", [0, 1, 2, 5])
def test_generate_that_fails_cancels_all_and_the_next_is_unaffected(
    monkeypatch, options, owner_and_name: str, at_call: int
):
    engine = make_engine(options=options)
    is_reading = owner_and_name == "reading"
    owner, name = (TokenCopy, "read") if is_reading else LAUNCHING[owner_and_name](engine)
    if owner_and_name == "telling the device who runs":
        at_call = 0  # there is nothing to tell after that
    with monkeypatch.context() as patch, pytest.raises(Boom):
        patch.setattr(owner, name, failing(getattr(owner, name), at_call))
        engine.generate(PROMPTS, EACH_PARAMS)
    assert not engine.has_work
    engine.check_integrity()
    assert tokens_of(engine.generate(PROMPTS, EACH_PARAMS)) == EXPECTED
    assert_no_block_is_lost(engine)


# --- pools too small -------------------------------------------------------------------------------


def never_preempted_in_flight(engine: InferenceEngine) -> None:
    """From now on, a preemption while a step is in flight is a failure."""
    put_back = engine.scheduler.put_back

    def spy(requests: list[Request]) -> None:
        assert not engine.readback.is_ahead
        put_back(requests)

    engine.scheduler.put_back = spy


@ahead
def test_a_following_step_without_blocks_waits_for_the_one_in_flight(options):
    """Two requests of four tokens, four blocks of four: the ninth token of both has none."""
    engine = make_engine(options=options, prefix_cache=False, max_blocks_per_layer=4)
    never_preempted_in_flight(engine)
    watch = Watch(engine)
    ids = add_all(engine, [(1, 2, 3, 4), (7, 8, 9, 10)], [GREEDY, GREEDY])
    outputs = list(engine.step())
    seen = []
    while engine.stats().counters.preemptions == 0:
        seen.append((engine.readback.is_ahead, engine.stats().free_blocks, len(watch.launches)))
        outputs += engine.step()
    # The prefill leaves two blocks, which the first step, launched behind it, takes. Four steps fill them; a
    # fifth, launched behind the fourth, waits, and the newest is preempted when nothing is in flight.
    assert seen == [(True, 0, 1), (True, 0, 2), (True, 0, 3), (True, 0, 4), (False, 0, 4)]
    assert all(launch == ids for launch in watch.launches[:4])
    assert [request.request_id for request in engine.scheduler.running] == ids[:1]
    handed_out = tokens_by_request(outputs + run(engine))
    expected = [tokens_alone(prompt, GREEDY) for prompt in ((1, 2, 3, 4), (7, 8, 9, 10))]
    assert [handed_out[i] for i in ids] == expected
    assert_no_block_is_lost(engine)


@pytest.mark.slow
@ahead
@pytest.mark.parametrize("num_blocks", [5, 6, 7, 9])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_in_a_pool_too_small_everybody_gets_their_tokens(options, prefix_cache: bool, num_blocks: int):
    engine = make_engine(
        options=options, prefix_cache=prefix_cache, max_blocks_per_layer=num_blocks, max_batch_size=4
    )
    never_preempted_in_flight(engine)
    Watch(engine)
    ids = add_all(engine) + add_all(engine)
    handed_out = tokens_by_request(run(engine))
    assert [handed_out[i] for i in ids] == EXPECTED * 2
    assert num_blocks > 6 or engine.stats().counters.preemptions > 0
    assert_no_block_is_lost(engine)


# --- any schedule ----------------------------------------------------------------------------------

GREEDY_IDS = sorted({token_id for tokens in EXPECTED for token_id in tokens})


@dataclass(frozen=True)
class Arrival:
    """A request, the step in which it comes, and the one in which it is cancelled if it has not ended."""

    prompt: tuple[int, ...]
    params: SamplingParams
    at: int
    until: int


ARRIVALS = st.builds(
    Arrival,
    prompt=st.sampled_from(PROMPTS),
    params=st.builds(
        long,
        st.integers(1, 12),
        st.sampled_from([GREEDY, GREEDY, SEEDED, replace(GREEDY, stop_on_eos=False)]),
    ),
    at=st.integers(0, 8),
    until=st.sampled_from([99, 99, 99, 4, 7, 9]),
)
LONGEST = 9 + 12 - 1  # tokens in the cache


def serve(engine: InferenceEngine, arrivals: list[Arrival]) -> dict[Arrival, list[Completion]]:
    """Completions by arrival; with each step, that it was handed out as it was made."""
    of, completions, handed_out, step = {}, {}, {}, 0
    while engine.has_work or step <= max(arrival.at for arrival in arrivals):
        assert step < 500
        for arrival in arrivals:
            if arrival.at == step:
                of[engine.add_request(arrival.prompt, arrival.params)] = arrival
        for request_id, arrival in of.items():
            if arrival.until == step and request_id not in completions:
                completions[request_id] = engine.cancel(request_id)
        for request_id, token_id, completion in engine.step():
            handed_out.setdefault(request_id, []).append(token_id)
            if completion is not None:
                assert completion.token_ids == tuple(handed_out[request_id])
                completions[request_id] = completion
        engine.check_integrity()
        step += 1
    assert completions.keys() == of.keys()
    by_arrival: dict[Arrival, list[Completion]] = {}
    for request_id, arrival in of.items():
        by_arrival.setdefault(arrival, []).append(completions[request_id])
    return by_arrival


@pytest.mark.slow
@settings(max_examples=100)
@given(
    options=st.sampled_from(list(AHEAD.values())),
    eos_token_id=st.sampled_from(GREEDY_IDS),
    arrivals=st.lists(ARRIVALS, min_size=1, max_size=7),
    block_size=st.integers(1, 5),
    spare_blocks=st.integers(0, 6) | st.just(100),
    prefix_cache=st.booleans(),
    max_batch_size=st.integers(1, 5),
    prefill_max_batch_size=st.integers(1, 3),
    decode_first=st.booleans(),
)
def test_wherever_texts_end_the_tokens_and_reasons_are_those_of_rung_00(
    options, eos_token_id, arrivals, block_size, spare_blocks, **policy
):
    model = small_model(eos_token_id=eos_token_id)
    num_blocks = -(-LONGEST // block_size) + spare_blocks
    engine = make_engine(model, options, block_size=block_size, max_blocks_per_layer=num_blocks, **policy)
    never_preempted_in_flight(engine)
    Watch(engine)
    for arrival, completions in serve(engine, arrivals).items():
        expected = alone(arrival.prompt, arrival.params, eos_token_id)
        for completion in completions:
            if completion.finish_reason is FinishReason.CANCELLED:
                assert arrival.until < 99
                assert completion.token_ids == expected.token_ids[: len(completion.token_ids)]
            else:
                assert_is(completion, expected)
    assert_no_block_is_lost(engine)


# --- on a GPU --------------------------------------------------------------------------------------

TEXTS = ["To be, or not", "O", "The king is", "Romeo, wherefore art thou", "To be", "My lord,", "What"]


def gpu_engine(tiny, options, **scheduler: int) -> InferenceEngine:
    return InferenceEngine(
        tiny,
        options,
        device="cuda",
        dtype=torch.float32,
        cache=CacheConfig(block_size=8),
        scheduler=SchedulerConfig(**{"max_batch_size": 4, "prefill_max_batch_size": 1, **scheduler}),
    )


def gpu_params(is_drawn: bool) -> list[SamplingParams]:
    return [
        SamplingParams(10 + 3 * i, temperature=0.8 if is_drawn and i % 2 else 0, seed=i, stop_on_eos=False)
        for i in range(len(TEXTS))
    ]


@pytest.mark.cuda
@pytest.mark.parametrize("is_drawn", [False, True], ids=["greedy", "drawn"])
def test_on_a_gpu_tokens_are_those_of_rung_09_with_one_step_in_flight(tiny, is_drawn: bool):
    params = gpu_params(is_drawn)
    expected = tokens_of(gpu_engine(tiny, FUSED_AND_SPLIT).generate(TEXTS, params))
    engine = gpu_engine(tiny, OVERLAP)
    watch = Watch(engine)
    for _ in range(2):
        made = tokens_of(engine.generate(TEXTS, params))
        if not is_drawn:
            assert made == expected
        assert [len(tokens) for tokens in made] == [each.max_new_tokens for each in params]
    for request_id in range(2 * len(TEXTS)):
        assert watch.launches_of(request_id) == params[request_id % len(TEXTS)].max_new_tokens - 1
    assert_no_block_is_lost(engine)


@pytest.mark.cuda
def test_on_a_gpu_texts_that_end_are_those_of_rung_00(tiny):
    """The end is a token that the model often makes, so that most requests end by it, one behind."""
    params = [replace(each, stop_on_eos=True) for each in gpu_params(is_drawn=False)]
    plain = gpu_engine(tiny, PAGED_ENGINE).generate(TEXTS, [replace(p, stop_on_eos=False) for p in params])
    often = Counter(token_id for tokens in tokens_of(plain) for token_id in set(tokens[1:]))
    eos_token_id = often.most_common(1)[0][0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny.tokenizer, "eos_token_id", eos_token_id)
        expected = gpu_engine(tiny, PAGED_ENGINE).generate(TEXTS, params)
        engine = gpu_engine(tiny, OVERLAP)
        Watch(engine)
        for completion, wanted in zip(engine.generate(TEXTS, params), expected, strict=True):
            assert_is(completion, wanted)
    assert FinishReason.STOP in {completion.finish_reason for completion in expected}
    assert_no_block_is_lost(engine)


@pytest.mark.cuda
@pytest.mark.parametrize("place", [*LAUNCHING, "reading"])
def test_on_a_gpu_after_a_failure_everybody_goes_on(tiny, monkeypatch: pytest.MonkeyPatch, place: str):
    params = gpu_params(is_drawn=False)
    expected = tokens_of(gpu_engine(tiny, PAGED_ENGINE).generate(TEXTS, params))
    engine = gpu_engine(tiny, OVERLAP)
    ids = add_all(engine, TEXTS, params)
    outputs = [output for _ in range(7) for output in engine.step()]
    assert engine.readback.is_ahead
    engine.readback._batch = None  # so that nothing of a launch is left out
    owner, name = (TokenCopy, "read") if place == "reading" else LAUNCHING[place](engine)
    with monkeypatch.context() as patch, pytest.raises(Boom):
        patch.setattr(owner, name, failing(getattr(owner, name)))
        engine.step()
    handed_out = tokens_by_request(outputs + run(engine))
    assert [handed_out[i] for i in ids] == expected
    assert_no_block_is_lost(engine)


@pytest.mark.cuda
def test_on_a_gpu_blocks_of_who_left_are_a_newcomers_at_once(tiny):
    """The step in flight still writes to them: before the newcomer's prefill, launched later, does."""
    params = [replace(each, max_new_tokens=20) for each in gpu_params(is_drawn=False)]
    expected = tokens_of(gpu_engine(tiny, PAGED_ENGINE).generate(TEXTS, params))
    engine = gpu_engine(tiny, OVERLAP, prefill_max_batch_size=4)
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


def test_a_copy_that_fails_to_start_leaves_the_tokens_in_flight_alone(monkeypatch):
    """Its buffer is not the next one's: A's last token is in flight when the launch for B alone fails."""
    engine = make_engine(options=OVERLAP, prefix_cache=False)
    a = engine.add_request((1, 2, 3), SamplingParams(3))
    outputs = [output for _ in range(2) for output in engine.step()]
    b = engine.add_request((7,), SamplingParams(6))
    outputs += engine.step()
    monkeypatch.setattr(staging, "TokenCopy", failing(staging.TokenCopy))
    with pytest.raises(Boom):
        engine.step()
    handed_out = tokens_by_request(outputs + run(engine))
    assert handed_out[a] == tokens_alone((1, 2, 3), SamplingParams(3))
    assert handed_out[b] == tokens_alone((7,), SamplingParams(6))


@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt])
def test_an_error_behind_a_copy_leaves_the_tokens_in_flight_alone(monkeypatch, error):
    """The copy was started, and its step is nobody's: the next copy leaves the tokens of the step before."""
    engine = make_engine(options=OVERLAP, prefix_cache=False)
    a = engine.add_request((1, 2, 3), SamplingParams(3))
    outputs = [output for _ in range(2) for output in engine.step()]
    b = engine.add_request((7,), SamplingParams(6))
    outputs += engine.step()
    pinned_tokens = engine.decode_step.pinned_tokens
    start_copy, left_behind = pinned_tokens.start_copy, []

    def fails_behind(token_ids):
        left_behind.append(start_copy(token_ids))
        if len(left_behind) == 1:
            raise error

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(pinned_tokens, "start_copy", fails_behind)
        engine.step()
    handed_out = tokens_by_request(outputs + run(engine))
    assert handed_out[a] == tokens_alone((1, 2, 3), SamplingParams(3))
    assert handed_out[b] == tokens_alone((7,), SamplingParams(6))
    assert len(pinned_tokens.buffers) == 3 and left_behind  # it is held: a buffer was added


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
