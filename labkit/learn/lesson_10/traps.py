"""Lesson 10: readbacks that are wrong on purpose, and calls that fail."""

from collections.abc import Sequence
from contextlib import suppress

import torch

from labkit.engine import InferenceEngine, SamplingParams, StepOutput
from labkit.engine.overlap import NextTokens, ReadOneBehind
from labkit.engine.request import RunningRequests
from labkit.engine.step.resident import StepInFlight
from labkit.engine.step.staging import PinnedTokens, TokenCopy
from labkit.watch import PlantedError, planted_failure, record_flights


class AsksWhoRuns(ReadOneBehind):
    """A readback that is wrong on purpose, for demonstration: it gives a token to its request if the request
    is running, in whatever session."""

    def still_running(self, step: StepInFlight, running: RunningRequests) -> list[int]:
        """The step's rows whose request runs."""
        return [b for b, request in enumerate(step.requests) if request in running]

    def next_tokens(self, running: RunningRequests) -> NextTokens:
        """With a token too many, a batch would miss a request's end: every token is looked at."""
        return super().next_tokens(running)._replace(batch=None)


def preempted_in_flight(
    engine: InferenceEngine, prompts: Sequence[str], num_tokens: int, after_calls: int = 4
) -> list[tuple[int, ...]]:
    """Serve the prompts; the newest request is preempted while a token of it is in flight. Returns each
    request's tokens."""
    params = SamplingParams(num_tokens, stop_on_eos=False)
    ids = [engine.add_request(prompt, params) for prompt in prompts]
    outputs: list[StepOutput] = []
    for _ in range(after_calls):
        outputs += engine.step()
    engine.scheduler.preempt_newest()  # as the engine does when blocks run out
    while engine.has_work:
        outputs += engine.step()
    return [tuple(o.token_id for o in outputs if o.request_id == request_id) for request_id in ids]


class OneBuffer(PinnedTokens):
    """A `PinnedTokens` that is wrong on purpose: the copies of all steps share one buffer."""

    def __init__(self, size: int) -> None:
        super().__init__(size, torch.device("cpu"))
        self.buffers[1] = self.buffers[0]


def two_steps_in_flight(pinned_tokens: PinnedTokens) -> list[list[int]]:
    """What is read when the copies of two steps are started before either is read."""
    copies = [pinned_tokens.start_copy(torch.tensor(token_ids)) for token_ids in ([11, 12], [21, 22])]
    return [copy.read() for copy in copies]


def run_with_failure(
    engine: InferenceEngine, prompts: Sequence[str], params: SamplingParams, what: str, after_calls: int = 3
) -> tuple[dict[str, object], list[tuple[int, ...]]]:
    """Serve the prompts while one call fails: the launch of the following step, or the read of the one in
    flight.

    what: "launch" or "read". Returns the engine's state before and after the failure, and the tokens of each
    request.
    """
    ids = [engine.add_request(prompt, params) for prompt in prompts]
    outputs = [output for _ in range(after_calls) for output in engine.step()]
    session, *_ = engine.scheduler.running.values()

    def state() -> tuple[int, int]:
        return session.num_tokens, int(engine.readback.is_ahead)

    place = {"launch": (engine.decode_step, "device_step"), "read": (TokenCopy, "read")}[what]
    (counted_before, flying_before) = state()
    with suppress(PlantedError), planted_failure(*place):
        outputs += engine.step()
    engine.check_integrity()
    (counted_after, flying_after) = state()
    launches, num_outputs = [], []
    for _ in range(2):
        with record_flights(engine) as watched:
            made = engine.step()
        outputs += made
        launches.append(len(watched.flights))
        num_outputs.append(len(made))
    while engine.has_work:
        outputs += engine.step()
    row = {
        "steps in flight": f"{flying_before} -> {flying_after}",
        "tokens in the cache": f"{counted_before} -> {counted_after}",
        "the next two calls launch": launches,
        "and hand out": num_outputs,
    }
    return row, [tuple(o.token_id for o in outputs if o.request_id == request_id) for request_id in ids]
