"""Recorded simulations of many replicas behind a router."""

from dataclasses import dataclass

import pandas as pd

from labkit.results.record import Record, table_of

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


@dataclass(frozen=True)
class FleetRecord(Record):
    """What `python -m labkit.bench fleet` recorded: a run per fleet, and some in which it grows."""

    def steady_table(self) -> pd.DataFrame:
        """A row per fleet of which the size is given; times of requests in milliseconds."""
        rows = {
            number: {
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
            for number, run in enumerate(run for run in self.samples if not run.event.startswith(GROWS))
        }
        return pd.DataFrame.from_dict(rows, orient="index").set_index("replicas")

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
