"""Recorded runs of batches that draw in several ways, on rungs whose samplers differ."""

from dataclasses import dataclass

import pandas as pd

from labkit.results.comparison import Comparison
from labkit.results.record import Record, table_of


@dataclass(frozen=True)
class SamplingRun:
    """A run of a workload on a rung. manner: how its requests pick their tokens. Seconds are those of
    decoding alone, over its `decode_steps`.

    equal_requests: that got the tokens of the workload's first run.
    """

    manner: str
    rung: str
    decode_seconds: float
    decode_steps: float
    tokens: int
    equal_requests: int

    @property
    def step_us(self) -> float:
        """Microseconds per decode step."""
        return 1e6 * self.decode_seconds / self.decode_steps


@dataclass(frozen=True)
class SamplingRecord(Record):
    """Recorded runs of two rungs in turn, for each manner of sampling."""

    @property
    def manners(self) -> list[str]:
        """How requests pick their tokens, by name, in the order of the record."""
        return self.distinct("manner")

    def step_us(self, manner: str, rung: str) -> float:
        """Microseconds per decode step, the median of the runs."""
        return self.median("step_us", manner=manner, rung=rung)

    def comparison(self, manner: str, before: str, after: str) -> Comparison:
        """Compare the decode times of two rungs, whose runs were made in turn."""
        return self.compared("decode_seconds", "rung", (before, after), manner=manner)

    def table(self) -> pd.DataFrame:
        """A row per manner: microseconds per decode step on either rung, their ratio with its verdict, and
        how many requests got the tokens of the first run in all runs of both."""
        rows, rungs = {}, sorted(self.distinct("rung"))
        for manner in self.manners:
            compared = self.comparison(manner, *rungs)
            equal = min(run.equal_requests for run in self.only(manner=manner))
            rows[manner] = {
                **{f"rung {r} (µs)": f"{self.step_us(manner, r):,.0f}" for r in rungs},
                "times as fast": f"×{compared.speedup:.2f} {compared.interval}",
                "verdict": compared.verdict,
                "same tokens": f"{equal} of {self.num_requests}",
            }
        return table_of(rows, "a decode step")
