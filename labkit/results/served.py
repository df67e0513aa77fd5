"""Recorded runs of readers that are served in the process, over HTTP, or by several replicas; and simulated
ones, of many replicas."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import pandas as pd

from labkit.results.record import Record, table_of

SIDES = IN_PROCESS, BY_PROCESS, BY_OPENAI = "in process", "http", "http, openai's client"
STEP = 1e-5  # seconds, to which times are kept


@dataclass(frozen=True)
class HttpRun:
    """A run of all readers. Times are in seconds, as the readers have them.

    side: how they were served: one of SIDES, or of those that older records have too. seconds: from the
    first request to the last token. frames: that brought text. ttft: of each reader. itl: of the gaps
    between two frames of a reader, how many took so many times `STEP`: see `counted`. busy: the share of a
    core that the busiest process of readers took; 0 where they are in the engine's process.
    """

    side: str
    seconds: float
    tokens: int
    frames: int
    ttft: tuple[float, ...]
    itl: tuple[tuple[int, int], ...]
    busy: float

    @property
    def rate(self) -> float:
        """Tokens per second, all readers together."""
        return self.tokens / self.seconds


class HttpRecord(Record):
    """What `python -m labkit.bench http` recorded: runs of each side, in turn."""

    def rate(self, side: str) -> float:
        """Tokens per second of a side, the median run."""
        return self.median("rate", side=side)

    def table(self) -> pd.DataFrame:
        """A row per side: medians over its runs, and percentiles of the pooled times in milliseconds."""
        rows = {}
        for side in self.distinct("side"):
            runs = self.only(side=side)
            rows[side] = {
                "tokens/s": f"{self.rate(side):,.0f}",
                "of in process": f"{self.rate(side) / self.rate(IN_PROCESS):.1%}",
                **felt_in(runs),
                "tokens/frame": f"{sum(r.tokens for r in runs) / sum(r.frames for r in runs):.2f}",
                "readers busy": f"{max(run.busy for run in runs):.0%}",
            }
        return pd.DataFrame.from_dict(rows, orient="index")


def felt_in(runs: Sequence[HttpRun]) -> dict[str, str]:
    """Percentiles of the runs' pooled times in milliseconds, as a table has them."""
    gaps = np.array([each for run in runs for each in run.itl], dtype=int).reshape(-1, 2)
    pooled = {
        "TTFT": np.array([t for run in runs for t in run.ttft]),
        "ITL": STEP * np.repeat(gaps[:, 0], gaps[:, 1]),
    }
    return {
        f"{name} p{p}": f"{1e3 * np.percentile(times, p):.2f}"
        for name, times in pooled.items()
        for p in (50, 99)
        if len(times)
    }


def counted(times: Iterable[float]) -> tuple[tuple[int, int], ...]:
    """Of times in seconds, how many are so many times `STEP`, in rising order: a run has far fewer lengths
    than gaps."""
    return tuple(sorted(Counter(round(seconds / STEP) for seconds in times).items()))


# --- several replicas ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReplicasRun(HttpRun):
    """A run of all readers. side: by which policy requests are routed.

    prompt_tokens: of all requests. reused: those found in a prefix cache, a number per replica. answered: so
    many requests by each replica, in that order; empty in older records.
    """

    replicas: int
    prompt_tokens: int
    reused: tuple[int, ...]
    answered: tuple[int, ...]

    @property
    def reused_share(self) -> float:
        """Of the prompts' tokens, those that no replica had to compute."""
        return sum(self.reused) / self.prompt_tokens


class ReplicasRecord(Record):
    """What `python -m labkit.bench replicas` recorded: of each number of replicas and policy some runs."""

    def table(self) -> pd.DataFrame:
        """A row per number of replicas and policy: medians over its runs (of the rate, the slowest and the
        fastest run as well), and percentiles of the pooled times in milliseconds. × is the rate beside that
        of the first row, which has the fewest replicas; where the readers ask one after another, the rate is
        theirs."""
        rows, one = {}, None
        samples = sorted(self.samples, key=lambda run: run.replicas)
        for replicas, policy in dict.fromkeys((run.replicas, run.side) for run in samples):
            runs = self.only(replicas=replicas, side=policy)
            rates = [run.rate for run in runs]
            least, typical, most = (f"{of(rates):,.0f}" for of in (min, median, max))
            one = one or median(rates)
            rows[f"{replicas}, {policy}"] = {
                "tokens/s": typical if least == most else f"{typical} [{least}, {most}]",
                **({} if self.within else {"×": f"{median(rates) / one:.2f}"}),
                **felt_in(runs),
                "tokens reused": f"{median(run.reused_share for run in runs):.1%}",
                "tokens/frame": f"{sum(r.tokens for r in runs) / sum(r.frames for r in runs):.1f}",
                "readers busy": f"{max(run.busy for run in runs):.0%}",
            }
        return table_of(rows, "replicas, policy")


# --- a fleet, simulated ----------------------------------------------------------------------------------

GROWS = "from "  # how the event of a fleet that grows begins


@dataclass(frozen=True)
class FleetRun:
    """A simulated run.

    event: what happens in it: replicas that are lost, or that join; "" for nothing. rate, tokens_per_second:
    requests and tokens of answers that are asked for in a second. last_refused: seconds after the start.
    hits: the share of requests whose beginning was in the prefix cache of their replica. ttft: median and
    99th percentile, in seconds. most_loaded: unfinished requests of the replica that has most, the mean over
    the second half of the run. choice_seconds: that the router took to choose a replica, the median; this
    alone is measured.
    """

    replicas: int
    policy: str
    ingresses: int
    event: str
    rate: float
    requests: int
    refused: int
    last_refused: float
    tokens_per_second: float
    hits: float
    ttft: tuple[float, float]
    most_loaded: float
    choice_seconds: float


class FleetRecord(Record):
    """What `python -m labkit.bench fleet` recorded: a run per fleet, and some in which it grows."""

    def steady_table(self) -> pd.DataFrame:
        """A row per fleet of which the size is given; times of requests in milliseconds."""
        rows = [
            {
                "replicas": f"{run.replicas:,}" + (f", {run.event}" if run.event else ""),
                "ingresses": f"{run.ingresses:,}",
                "policy": run.policy,
                "requests/s": f"{run.rate:,.0f}",
                "beginnings found": f"{run.hits:.0%}",
                "TTFT p50": f"{1e3 * run.ttft[0]:.2f}",
                "TTFT p99": f"{1e3 * run.ttft[1]:.2f}",
                "most on one": f"{run.most_loaded:.0f}",
                "µs a choice": f"{1e6 * run.choice_seconds:,.0f}",
                "cores of each ingress": f"{run.rate * run.choice_seconds / run.ingresses:,.2f}",
            }
            for run in self.samples
            if not run.event.startswith(GROWS)
        ]
        return pd.DataFrame(rows).set_index("replicas")

    def growth_table(self) -> pd.DataFrame:
        """A row per fleet that grows."""
        rows = {
            run.event: {
                "requests/s": f"{run.rate:,.0f}",
                "refused": f"{run.refused / run.requests:.0%}",
                "last refused after": f"{run.last_refused:.0f} s",
                "TTFT p99": f"{1e3 * run.ttft[1]:,.0f} ms",
            }
            for run in self.samples
            if run.event.startswith(GROWS)
        }
        return table_of(rows, "fleet")
