"""One run of a workload through an engine, as a clock outside of it sees it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from labkit.bench.workload import Workload
from labkit.engine import SamplingParams
from labkit.errors import OptionError

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
