"""Recorded runs of a model on one GPU, and cut among several."""

from dataclasses import dataclass

import pandas as pd

from labkit.results.comparison import Comparison
from labkit.results.record import Record, table_of

ONE, CUT, CUT_NCCL = "one", "cut", "cut, sums by NCCL"
SUMS = ("residual_sum", "AllReduce")  # in names of kernels that make a sum over GPUs, or add one


@dataclass(frozen=True)
class RanksRun:
    """The decode steps of requests that were served together.

    side: on how many GPUs: ONE, CUT or CUT_NCCL. kernels_us: microseconds of each kernel, by name, in a step
    that was profiled after the run on the first rank's GPU; {} where none was.
    """

    side: str
    requests: int
    decode_seconds: float
    decoded_tokens: int
    kernels_us: dict[str, float]

    @property
    def rate(self) -> float:
        """Tokens per second, all requests together."""
        return self.decoded_tokens / self.decode_seconds


class RanksRecord(Record):
    """What `python -m labkit.bench ranks` recorded: runs of each side in turn, by number of requests."""

    def rate(self, side: str, requests: int) -> float:
        """Decode tokens per second of a side, the median run."""
        return self.median("rate", side=side, requests=requests)

    def best_side(self, requests: int) -> str:
        """The side that was faster of those on which the model is cut."""
        cut = dict.fromkeys(run.side for run in self.only(requests=requests) if run.side != ONE)
        return max(cut, key=lambda side: self.rate(side, requests))

    def sums_us(self, side: str, requests: int) -> float:
        """Microseconds of all kernels of a profiled step that make sums over GPUs, waits for others included;
        0 where no step was profiled."""
        kernels = [run.kernels_us for run in self.only(side=side, requests=requests)]
        return sum(us for each in kernels for name, us in each.items() if any(part in name for part in SUMS))

    def comparison(self, side: str, requests: int) -> Comparison:
        """A side's decode times beside those of one GPU."""
        return self.compared("decode_seconds", "side", (ONE, side), requests=requests)

    def table(self) -> pd.DataFrame:
        """A row per number of requests: tokens per second of each side, and what cutting gains."""
        rows, (one, *cut) = {}, self.distinct("side")
        for requests in self.distinct("requests"):
            steps = {side: self.comparison(side, requests) for side in cut}
            rows[requests] = {
                **{f"tokens/s, {side}": f"{self.rate(side, requests):,.0f}" for side in (one, *cut)},
                **{f"×, {side}": f"{step.speedup:.2f} {step.interval}" for side, step in steps.items()},
            }
        return table_of(rows, "requests")
