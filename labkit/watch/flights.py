"""Steps in flight: what was launched, when it was read, and which requests got the tokens."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from labkit.engine import InferenceEngine
from labkit.engine.overlap import NextTokens
from labkit.engine.request import Request, RunningRequests
from labkit.engine.step.resident import ResidentDecodeStep, StepInFlight
from labkit.watch.replaced import replaced


@dataclass
class Flight:
    """A step that was launched, and in which calls. Calls in which the engine decodes are numbered from 1."""

    number: int  # of the step, from 1
    launched_in: int  # number of the call
    request_ids: list[int]
    read_in: int | None = None  # None: never read
    token_ids: list[int | None] = field(default_factory=list)  # what was read, in the requests' order
    handed_to: set[int] = field(default_factory=set)


@dataclass
class Flights:
    """All steps that an engine launched while it was watched, in order, and how many times it decoded."""

    flights: list[Flight] = field(default_factory=list)
    calls: int = 0

    @property
    def tokens_to_nobody(self) -> int:
        """How many tokens of the launched steps, one per step and request, no request got."""
        return sum(len(flight.request_ids) - len(flight.handed_to) for flight in self.flights)


@contextmanager
def record_flights(engine: InferenceEngine) -> Iterator[Flights]:
    """Record the steps that an engine launches and reads inside the block.

    Raises ValueError for an engine whose steps are not launched and read apart (up to rung 05).
    """
    step = engine.decode_step
    if not isinstance(step, ResidentDecodeStep):
        raise ValueError("this rung's steps are not launched and read apart; take rung 06 or above")
    watched = Flights()

    def noting_start(inner: Callable[..., StepInFlight]) -> Callable[..., StepInFlight]:
        def start(requests: Sequence[Request], *about: object) -> StepInFlight:
            step_in_flight = inner(requests, *about)
            ids = [request.request_id for request in requests]
            flight = Flight(len(watched.flights) + 1, watched.calls, ids)
            watched.flights.append(flight)
            stack.enter_context(replaced(step_in_flight, "read", partial(noting_read, flight)))
            return step_in_flight

        return start

    def noting_read(flight: Flight, inner: Callable[[], list[int | None]]) -> Callable:
        def read() -> list[int | None]:
            flight.token_ids = inner()
            flight.read_in = watched.calls
            return flight.token_ids

        return read

    def noting_tokens(inner: Callable[..., NextTokens]) -> Callable[..., NextTokens]:
        def next_tokens(running: RunningRequests) -> NextTokens:
            watched.calls += 1
            made = inner(running)
            for flight in watched.flights:  # the one that was read, unless it was launched before
                if flight.read_in == watched.calls:
                    flight.handed_to = {request.request_id for request in made.requests}
            return made

        return next_tokens

    with ExitStack() as stack:
        stack.enter_context(replaced(step, "start", noting_start))
        stack.enter_context(replaced(engine.readback, "next_tokens", noting_tokens))
        yield watched
