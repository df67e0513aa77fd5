"""One run of a workload through an engine, as a clock outside of it sees it; labkit at a rung is such one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from labkit.bench.streaming import felt_latency, run_streaming
from labkit.bench.workload import Workload
from labkit.engine import InferenceEngine, SamplingParams
from labkit.errors import OptionError
from labkit.ladder import LADDER

TokenIds = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class PeerRun:
    """One run of a workload through an engine. Times are in seconds."""

    seconds: float
    first_token_seconds: float | None  # to the first batch's first tokens; None where it is not known
    token_ids: TokenIds  # of each request, in the order of the workload
    ttft: tuple[float, ...] = ()  # of each request, from its arrival, where they come one after another
    itl: tuple[float, ...] = ()  # the gaps between two tokens, of all requests; likewise

    @property
    def tokens(self) -> int:
        """Tokens generated, counted as ids."""
        return sum(map(len, self.token_ids))


Peer = Callable[[], PeerRun]


class CannotServeError(OptionError):
    """A workload that an engine has no way to serve; the message is the reason, a sentence."""


def refuse_arrivals(workload: Workload) -> None:
    """Raises CannotServeError if a request comes after the start, for an engine that takes whole batches."""
    if workload.has_arrivals:
        raise CannotServeError("a batch starts together, and no request can join it later")


def one_rule(workload: Workload) -> SamplingParams:
    """How all requests pick their tokens, but for their seeds and lengths. Raises CannotServeError if they do
    so in several ways."""
    rules = {replace(r.params, seed=None, max_new_tokens=1) for r in workload.requests}
    if len(rules) > 1:
        raise CannotServeError("all requests pick their tokens by one rule here, and these have several")
    return rules.pop()


def labkit_peer(workload: Workload, rung: str) -> Peer:
    """labkit at a rung, with one engine for all runs; its prefix cache is emptied before each.

    Requests that come one after another are served by a `StreamingServer`, the others by steps in a loop.
    """
    run = stream if workload.has_arrivals else step_through
    return partial(run, workload, workload.make_engine(LADDER[rung].options))


def step_through(workload: Workload, engine: InferenceEngine) -> PeerRun:
    """Serve the workload with `engine.step()` in a loop, timed from the first request to the last token."""
    completions, seconds = workload.serve(engine)
    completions.sort(key=lambda completion: completion.request_id)
    first_tokens = min(c.timing.tokens[0] for c in completions) - completions[0].timing.arrived
    return PeerRun(seconds, first_tokens, tuple(tuple(c.token_ids) for c in completions))


def stream(workload: Workload, engine: InferenceEngine) -> PeerRun:
    """Serve requests as they come, each with a task that reads its tokens: the times are those tasks'."""
    consumers = run_streaming(workload, engine)
    felt = felt_latency(consumers)
    made = tuple(tuple(consumer.completion.token_ids) for consumer in consumers)
    return PeerRun(felt.span, None, made, felt.ttft, felt.itl)
