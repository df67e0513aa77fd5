"""Tokens that are read one step behind: what is on its way, and who gets it."""

from dataclasses import dataclass, replace
from functools import cache

import pytest
from helpers import (
    AHEAD,
    GREEDY,
    SEEDED,
    ahead,
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
from resident_helpers import EACH_PARAMS, EXPECTED, PROMPTS, TEXTS, gpu_engine

from labkit import FinishReason, InferenceEngine, SamplingParams
from labkit.engine import Completion, StepOutput
from labkit.engine.overlap import ReadOneBehind
from labkit.engine.request import Request, RunningRequests
from labkit.engine.step.resident import StepInFlight
from labkit.ladder import BLOCK_PREFIX_CACHE, FUSED_AND_SPLIT, OVERLAP, PAGED_ENGINE


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


def test_a_step_in_which_nobody_runs_drops_what_is_in_flight():
    engine = make_engine(options=OVERLAP, decode_first=True)
    request_id = engine.add_request(PROMPTS[0], GREEDY)
    engine.step(), engine.step()
    assert engine.readback.is_ahead
    engine.cancel(request_id)
    assert not engine.step()
    assert not engine.readback.is_ahead


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


def test_cached_prompts_make_way_for_a_step_behind_the_one_in_flight():
    """A pool that is full of what others have left, as a server's is: no step waits for blocks."""
    engine = make_engine(options=BLOCK_PREFIX_CACHE, max_blocks_per_layer=12)
    engine.generate([tuple(range(at, at + 8)) for at in (50, 60, 70, 80, 90)], SamplingParams(1))
    assert engine.stats().free_blocks == 12 - 10
    ids = add_all(engine, [(1, 2, 3, 4), (7, 8, 9, 10)], [GREEDY, GREEDY])
    outputs: list[StepOutput] = []
    while not outputs or engine.scheduler.running:
        outputs += engine.step()
        assert engine.readback.is_ahead or not engine.scheduler.running
    assert engine.stats().prefix_evictions > 0
    handed_out = tokens_by_request(outputs)
    expected = [tokens_alone(prompt, GREEDY) for prompt in ((1, 2, 3, 4), (7, 8, 9, 10))]
    assert [handed_out[i] for i in ids] == expected


# --- any schedule ----------------------------------------------------------------------------------

GREEDY_IDS = sorted({token_id for tokens in EXPECTED for token_id in tokens})


@dataclass(frozen=True)
class Arrival:
    """A request, the step in which it comes, and the one in which it is cancelled if it has not ended."""

    prompt: tuple[int, ...]
    params: SamplingParams
    at: int
    until: int


ENDS = [chr(token_id) for token_id in GREEDY_IDS if token_id < 128][::3]
NO_END, STOPPING = replace(GREEDY, stop_on_eos=False), replace(GREEDY, stop=ENDS)
ARRIVALS = st.builds(
    Arrival,
    prompt=st.sampled_from(PROMPTS),
    params=st.builds(
        long,
        st.integers(1, 12),
        st.sampled_from([GREEDY, SEEDED, NO_END, STOPPING]),
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


def gpu_params(is_drawn: bool) -> list[SamplingParams]:
    return [
        SamplingParams(10 + 3 * i, temperature=0.8 if is_drawn and i % 2 else 0, seed=i, stop_on_eos=False)
        for i in range(len(TEXTS))
    ]


@pytest.mark.cuda
@pytest.mark.parametrize("is_drawn", [False, True], ids=["greedy", "drawn"])
def test_on_a_gpu_tokens_are_those_of_rung_09_with_one_step_in_flight(tiny, is_drawn: bool):
    params = gpu_params(is_drawn)
    expected = tokens_of(gpu_engine(tiny, FUSED_AND_SPLIT, max_batch_size=4).generate(TEXTS, params))
    engine = gpu_engine(tiny, OVERLAP, max_batch_size=4)
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
def test_on_a_gpu_blocks_of_who_left_are_a_newcomers_at_once(tiny):
    """The step in flight still writes to them: before the newcomer's prefill, launched later, does."""
    params = [replace(each, max_new_tokens=20) for each in gpu_params(is_drawn=False)]
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
