"""Recorded runs of batches that draw in several ways, on rungs whose samplers differ."""

from dataclasses import dataclass
from statistics import median

import pandas as pd

from labkit.results.comparison import Comparison
from labkit.results.record import Record


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


@dataclass(frozen=True)
class SamplingRecord(Record):
    """What `python -m labkit.bench sampling` recorded: two rungs in turn, for each manner of sampling."""

    @property
    def manners(self) -> list[str]:
        """How requests pick their tokens, by name, in the order of the record."""
        return list(dict.fromkeys(sample.manner for sample in self.samples))

    def step_us(self, manner: str, rung: str) -> float:
        """Microseconds per decode step, the median of the runs."""
        return 1e6 * median(
            run.decode_seconds / run.decode_steps for run in self.only(manner=manner, rung=rung)
        )

    def comparison(self, manner: str, before: str, after: str) -> Comparison:
        """Compare the decode times of two rungs, whose runs were made in turn."""
        first, second = (
            tuple(run.decode_seconds for run in self.only(manner=manner, rung=rung))
            for rung in (before, after)
        )
        return Comparison(before, after, first, second, {}, {})

    def table(self) -> pd.DataFrame:
        """A row per manner: microseconds per decode step on either rung, their ratio with its verdict, and
        how many requests got the tokens of the first run in all runs of both."""
        before, after = (pick(sample.rung for sample in self.samples) for pick in (min, max))
        rows = {}
        for manner in self.manners:
            compared = self.comparison(manner, before, after)
            runs = (*self.only(manner=manner, rung=before), *self.only(manner=manner, rung=after))
            rows[manner] = {
                f"rung {before} (µs)": f"{self.step_us(manner, before):,.0f}",
                f"rung {after} (µs)": f"{self.step_us(manner, after):,.0f}",
                "times as fast": f"×{compared.speedup:.2f} {compared.interval}",
                "verdict": compared.verdict,
                "same tokens": f"{min(run.equal_requests for run in runs)} of {self.num_requests}",
            }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("a decode step")
