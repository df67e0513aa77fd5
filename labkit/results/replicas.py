"""Recorded runs of readers whom several replicas behind one door serve."""

from dataclasses import dataclass
from statistics import median
from typing import ClassVar

import pandas as pd

from labkit.results.http import HttpRun, felt_in
from labkit.results.record import Record
from labkit.results.typed import Count


@dataclass(frozen=True)
class ReplicasRun(HttpRun):
    """A run of all readers. side: by which policy requests are routed.

    prompt_tokens: of all requests. reused: those found in a prefix cache, a number per replica. answered: so
    many requests by each replica, in that order; empty in older records.
    """

    replicas: Count
    prompt_tokens: Count
    reused: tuple[Count, ...]
    answered: tuple[Count, ...]

    @property
    def reused_share(self) -> float:
        """Of the prompts' tokens, those that no replica had to compute."""
        return sum(self.reused) / self.prompt_tokens


@dataclass(frozen=True)
class ReplicasRecord(Record):
    """What `python -m labkit.bench replicas` recorded: of each number of replicas and policy some runs."""

    samples: tuple[ReplicasRun, ...]
    SETTINGS: ClassVar[dict[str, type]] = {
        "load": str,
        "requests": int,
        "prefixes": int,
        "within": float,
        "ingresses": int,
    }

    def rate(self, replicas: int, policy: str) -> float:
        """Tokens per second, the median run."""
        return median(run.rate for run in self.only(replicas=replicas, side=policy))

    def reused(self, replicas: int, policy: str) -> float:
        """The share of the prompts' tokens that was reused, the median run."""
        return median(run.reused_share for run in self.only(replicas=replicas, side=policy))

    def table(self) -> pd.DataFrame:
        """A row per number of replicas and policy: medians over its runs (of the rate, the slowest and the
        fastest run as well), and percentiles of the pooled times in milliseconds. × is the rate beside that
        of the first row, which has the fewest replicas; where the readers ask one after another, the rate is
        theirs."""
        rows = {}
        samples = sorted(self.samples, key=lambda run: run.replicas)
        one = self.rate(samples[0].replicas, samples[0].side)
        for replicas, policy in dict.fromkeys((run.replicas, run.side) for run in samples):
            runs = self.only(replicas=replicas, side=policy)
            rows[f"{replicas}, {policy}"] = {
                "tokens/s": f"{self.rate(replicas, policy):,.0f}{span([run.rate for run in runs])}",
                **({} if self.within else {"×": f"{self.rate(replicas, policy) / one:.2f}"}),
                **felt_in(runs),
                "tokens reused": f"{self.reused(replicas, policy):.1%}",
                "tokens/frame": f"{sum(r.tokens for r in runs) / sum(r.frames for r in runs):.1f}",
                "readers busy": f"{max(run.busy for run in runs):.0%}",
            }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("replicas, policy")


def span(rates: list[float]) -> str:
    """The least and the largest of several rates, in brackets, if they differ."""
    least, most = f"{min(rates):,.0f}", f"{max(rates):,.0f}"
    return f" [{least}, {most}]" if least != most else ""
