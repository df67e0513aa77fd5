"""Lesson 10: what a reader's readback is made from, a wrong one, and what they do with some requests."""

from collections.abc import Sequence, Set

from labkit.engine import InferenceEngine, InferenceSession, SamplingParams, StepOutput
from labkit.engine.overlap import NextTokens, ReadOneBehind, tokens_left
from labkit.engine.request import Request, RunningRequests
from labkit.engine.step.resident import StepInFlight
from labkit.learn.gates.gate import raised
from labkit.watch import Flights, record_flights

PROMPTS = ("To be, or not to be", "O", "JULIET:\n", "Exit")  # the model ends all of them but the first
LIMITS = (3, 40, 40, 40)  # new tokens of each
MOST_CALLS = 2 * max(LIMITS)  # of `engine.step()`; a readback that hands nothing out would never be done


class OneInFlight(ReadOneBehind):
    """Room for one step in flight, and what any readback does with it.

    A subclass says when to launch and when to read, in `next_tokens`. Whose tokens are handed out and who is
    launched again is decided as in the package, until a subclass decides it.
    """

    def going_on(
        self, running: RunningRequests, in_flight: Set[InferenceSession]
    ) -> dict[Request, InferenceSession]:
        """The requests that have a token to make after the one in flight, with their sessions."""
        pairs = zip(running.items(), tokens_left(running, in_flight), strict=True)
        return {request: session for (request, session), left in pairs if left > 0}

    def launch_behind(self, step: StepInFlight, running: RunningRequests) -> StepInFlight | None:
        """Launch the next step, while `step` has not been read.

        None if no request goes on, or blocks are missing, or the device needs a token that only `step` has.
        """
        in_flight = frozenset(step.sessions)
        going_on = self.going_on(dict(running), in_flight)  # a copy: who is taken out of it runs on
        sessions, decode_step = going_on.values(), self.decode_step
        has_room = sum(s.next_token_takes_block for s in sessions) <= decode_step.kv_manager.num_free_blocks
        is_known = all(decode_step.slots.knows(s) for s in sessions if s in in_flight)
        return decode_step.launch(going_on) if going_on and has_room and is_known else None

    def read(self, step: StepInFlight, running: RunningRequests) -> Sequence[int | None]:
        """Wait for the step's tokens. If that fails, it is undone, and so is the step after it."""
        try:
            return step.read()
        except BaseException:
            behind, self.in_flight = self.in_flight, None
            for undone in {step, behind} - {None}:
                undone.cancel(running)
            raise

    def hand_out(
        self, step: StepInFlight, token_ids: Sequence[int | None], running: RunningRequests
    ) -> NextTokens:
        """The requests that get their tokens, and the tokens."""
        rows = list(self.still_running(step, running))
        return NextTokens([step.requests[row] for row in rows], [token_ids[row] for row in rows])

    def launch_first(self, running: RunningRequests) -> None:
        """Nothing is launched behind a prefill."""


class AsksWhoRuns(ReadOneBehind):
    """A readback that is wrong on purpose, for demonstration: it gives a token to its request if the request
    is running, in whatever session."""

    def still_running(self, step: StepInFlight, running: RunningRequests) -> list[int]:
        """The step's rows whose request runs."""
        return [b for b, request in enumerate(step.requests) if request in running]

    def next_tokens(self, running: RunningRequests) -> NextTokens:
        """With a token too many, a batch would miss a request's end: every token is looked at."""
        return super().next_tokens(running)._replace(batch=None)


def fly(engine: InferenceEngine) -> Flights:
    """Serve the four prompts up to their limits, by MOST_CALLS calls at most, and watch the steps."""
    for prompt, limit in zip(PROMPTS, LIMITS, strict=True):
        engine.add_request(prompt, SamplingParams(max_new_tokens=limit))
    with record_flights(engine) as watched:
        for _ in range(MOST_CALLS):
            if engine.has_work:
                engine.step()
    return watched


def flown(engine: InferenceEngine) -> str:
    """Steps of the four prompts, how many were launched ahead, and the tokens made for nobody, in a line."""
    try:
        watched = fly(engine)
    except Exception as error:  # whatever the reader's code raises
        return f"four requests: the engine {raised(error)}"
    ahead = sum(flight.read_in != flight.launched_in for flight in watched.flights)
    unfinished = f"not done after {MOST_CALLS} calls, " if engine.has_work else ""
    return (
        f"four requests: {unfinished}{len(watched.flights)} steps, launched ahead: {ahead}; "
        f"tokens for nobody: {watched.tokens_to_nobody}"
    )


def preempted_in_flight(
    engine: InferenceEngine, prompts: Sequence[str], num_tokens: int
) -> list[tuple[int, ...]]:
    """Each request's tokens, when the newest one is preempted while a token of it is in flight."""
    params = SamplingParams(num_tokens, stop_on_eos=False)
    ids = [engine.add_request(prompt, params) for prompt in prompts]
    outputs: list[StepOutput] = []
    for _ in range(4):
        outputs += engine.step()
    engine.scheduler.preempt_newest()  # as the engine does when blocks run out
    while engine.has_work:
        outputs += engine.step()
    return [tuple(o.token_id for o in outputs if o.request_id == request_id) for request_id in ids]
