"""The engine under random schedules and failures, in pools too small: every request gets its own tokens."""

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import pytest
from helpers import (
    Boom,
    assert_no_block_is_lost,
    engines_by_day,
    failing,
    make_engine,
    small_model,
    tokens_alone,
    tokens_of,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from resident_helpers import FromTwoRows

from labkit import FinishReason, SamplingParams
from labkit.engine.step.resident import ResidentDecodeStep
from labkit.ladder import HIDDEN_LATENCY

pytestmark = pytest.mark.slow
SCHEDULES = settings(max_examples=40, stateful_step_count=30)  # of each engine


# Many begin with another one, so that the prefix cache has whole and partial hits.
PROMPTS = st.sampled_from([(1,), (1, 2, 3), (1, 2, 3, 4, 5, 6), (1, 2, 3, 9), (7, 8), tuple(range(20, 30))])
MADE = sorted(set(tokens_alone((1, 2, 3), SamplingParams(9)) + tokens_alone((7, 8), SamplingParams(9))))
PARAMS = st.sampled_from(
    [
        *(SamplingParams(n) for n in (1, 4, 9)),
        SamplingParams(9, stop_on_eos=False),
        SamplingParams(6, temperature=1.0, seed=3, logprobs=2),
        SamplingParams(9, stop=[chr(token_id) for token_id in range(1, 128, 5)]),
        SamplingParams(5, temperature=1.5, top_k=20, top_p=0.8, seed=4),
    ]
)
LONGEST = 10 + 9 - 1  # tokens in the cache
ANY = st.integers(0, 99)  # which of the requests or streams there are

# What can fail inside a step: an owner and the name of what is called there.
PLACES = {
    "telling the device": lambda engine: telling(engine.decode_step),
    "the device's work": lambda engine: (engine.decode_step, working(engine.decode_step)),
    "append at layer k, request b": lambda engine: (engine.kv_manager, "append_token"),
    "making a block ready": lambda engine: (engine.kv_manager, "allocate_block"),
    "writing a layer's batch": lambda engine: (engine.kv_manager.kv_write, "write"),
    "storing a prompt": lambda engine: (engine.kv_manager, "append_prompt"),
    "looking up a prefix": lambda engine: (engine.prefix_cache, "lookup"),
    "keeping a prompt": lambda engine: (engine.prefix_cache, "insert"),
    "sampling": lambda engine: (engine.decode_step, sampling(engine.decode_step)),
}


def telling(step):
    return (step.slots, "update") if is_resident(step) else (step.block_tables, "build")


def working(step):
    return "device_step" if is_resident(step) else "attention"


def sampling(step):
    return "device_step" if is_resident(step) else "sample"


def is_resident(step):
    return isinstance(step, ResidentDecodeStep)


@dataclass
class OpenStream:
    chunks: object
    expected: tuple[int, ...]
    received: tuple[int, ...] = ()
    text: str = ""


class EngineMachine(RuleBasedStateMachine):
    """The model: what each request must get, and what `step` has handed out so far."""

    def __init__(self, options, parts=None):
        super().__init__()
        self.options, self.parts, self.eos_token_id = options, parts, None
        self.expected: dict[int, tuple[int, ...]] = {}
        self.received: dict[int, tuple[int, ...]] = {}
        self.live: list[int] = []  # requests added and not ended
        self.streams: list[OpenStream] = []

    @initialize(
        eos_token_id=st.none() | st.sampled_from(MADE),
        block_size=st.integers(1, 6),
        spare_blocks=st.integers(0, 6),
        prefix_cache=st.booleans(),
        max_prefix_entries=st.integers(1, 4),
        max_batch_size=st.integers(1, 4),
        prefill_max_batch_size=st.integers(1, 4),
        prefill_max_tokens=st.integers(1, 20),
        prefill_chunk_tokens=st.integers(1, 20),
        admission_policy=st.sampled_from(["fifo", "pack"]),
        pack_window=st.integers(1, 3),
        decode_first=st.booleans(),
    )
    def start(self, eos_token_id, block_size, spare_blocks, **policy):
        self.eos_token_id = eos_token_id
        num_blocks = -(-LONGEST // block_size) + spare_blocks
        self.engine = make_engine(
            small_model(eos_token_id),
            options=self.options,
            parts=self.parts,
            block_size=block_size,
            max_blocks_per_layer=num_blocks,
            **policy,
        )
        scheduler = self.engine.scheduler
        scheduler.preempt_newest = partial(self.preempt, scheduler, scheduler.preempt_newest)

    def preempt(self, scheduler, preempt_newest):
        """The newest of those who have blocks waits from here on, ahead of all others; so the order stays."""
        before = scheduler.requests
        preempt_newest()
        assert scheduler.requests == before

    def alone(self, prompt, params):
        """What a request must get: up to the first token that ends a text."""
        tokens = tokens_alone(prompt, params)
        ends = self.eos_token_id in tokens and params.stop_on_eos
        return tokens[: tokens.index(self.eos_token_id) + 1] if ends else tokens

    # --- moves -------------------------------------------------------------------------------------

    @rule(prompt=PROMPTS, params=PARAMS)
    def add(self, prompt, params):
        request_id = self.engine.add_request(prompt, params)
        self.expected[request_id] = self.alone(prompt, params)
        self.received[request_id] = ()
        self.live.append(request_id)

    @rule()
    def step(self):
        with suppress(Boom):
            for request_id, token_id, completion in self.engine.step():
                assert request_id in self.live
                self.received[request_id] += (token_id,)
                if completion:
                    assert completion.finish_reason in (FinishReason.LENGTH, FinishReason.STOP)
                    assert completion.token_ids == self.received[request_id]
                    self.live.remove(request_id)

    @precondition(lambda self: self.engine.scheduler.requests)
    @rule(which=ANY)
    def cancel(self, which):
        unfinished = [request.request_id for request in self.engine.scheduler.requests]
        request_id = unfinished[which % len(unfinished)]
        completion = self.engine.cancel(request_id)
        assert completion.finish_reason is FinishReason.CANCELLED
        if request_id in self.live:  # else it is a stream's
            assert completion.token_ids[: len(self.received[request_id])] == self.received[request_id]
            assert self.expected[request_id][: len(completion.token_ids)] == completion.token_ids
            self.live.remove(request_id)
            self.received[request_id] = self.expected[request_id]

    @rule(prompts=st.lists(PROMPTS, max_size=4), params=PARAMS)
    def generate(self, prompts, params):
        with suppress(Boom):
            completions = self.engine.generate(prompts, params)
            assert tokens_of(completions) == [self.alone(prompt, params) for prompt in prompts]

    @rule(prompt=PROMPTS, params=PARAMS)
    def open_stream(self, prompt, params):
        self.streams.append(OpenStream(self.engine.stream(prompt, params), self.alone(prompt, params)))

    @precondition(lambda self: self.streams)
    @rule(which=ANY, leave=st.booleans())
    def read_or_leave_a_stream(self, which, leave):
        stream = self.streams.pop(which % len(self.streams))
        if leave:
            return stream.chunks.close()
        with suppress(Boom):
            text, token_ids, completion = next(stream.chunks)
            stream.text += text
            stream.received += token_ids
            if completion is None:
                self.streams.append(stream)
            else:
                assert stream.text == completion.text
                assert stream.received == completion.token_ids
                cancelled = completion.finish_reason is FinishReason.CANCELLED
                assert cancelled or stream.received == stream.expected
            assert stream.expected[: len(stream.received)] == stream.received

    @rule(place=st.sampled_from(sorted(PLACES)), at_call=st.integers(0, 5))
    def plant_a_failure(self, place, at_call):
        owner, name = PLACES[place](self.engine)
        if owner is not None:  # there may be no prefix cache
            setattr(owner, name, failing(getattr(owner, name), at_call))

    # --- what holds after each move ----------------------------------------------------------------

    @invariant()
    def every_block_is_accounted_for(self):
        self.engine.check_integrity()

    @invariant()
    def nobody_runs_and_waits(self):
        scheduler = self.engine.scheduler
        assert len(scheduler.requests) == len(set(scheduler.requests))
        assert all(session.num_tokens for session in scheduler.sessions)
        assert len(scheduler.sessions) <= scheduler.config.max_batch_size

    @invariant()
    def nobody_overtakes_in_fifo(self):
        scheduler = self.engine.scheduler
        if scheduler.config.admission_policy == "fifo":
            request_ids = [request.request_id for request in scheduler.requests]
            assert all(first < second for first, second in pairwise(request_ids))

    def teardown(self):
        for stream in self.streams:
            stream.chunks.close()
        for _ in range(1000):
            if not self.engine.has_work:
                break
            self.step()
            self.engine.check_integrity()
        assert not self.engine.has_work
        assert self.received == self.expected and not self.live
        assert_no_block_is_lost(self.engine)


@engines_by_day
def test_every_request_gets_its_tokens_and_no_block_is_lost(options):
    run_state_machine_as_test(lambda: EngineMachine(options), settings=SCHEDULES)


def test_every_request_gets_its_tokens_from_the_half_that_it_is_in():
    run_state_machine_as_test(
        lambda: EngineMachine(HIDDEN_LATENCY, {"latency": FromTwoRows}), settings=SCHEDULES
    )
