"""What a decode step costs the host, with the model taken out."""

from dataclasses import dataclass, replace
from itertools import chain
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from labkit.results.comparison import Comparison
from labkit.results.kernels import median_us
from labkit.results.record import Record, table_of


@dataclass(frozen=True)
class HostTime:
    """Seconds that the host takes per decode step of `batch_size` requests, a number per step.

    Nothing in them waits for the GPU. A step's time includes that for block tables and that for the append.
    """

    batch_size: int
    num_layers: float
    step_seconds: tuple[float, ...]
    tables_seconds: tuple[float, ...]  # for block tables: making them, or updating the device's slots
    append_seconds: tuple[float, ...]  # for the append: storing keys and values, or making room for them

    @property
    def step_us(self) -> float:
        """Microseconds per step, the median."""
        return median_us(self.step_seconds)

    @property
    def tables_us(self) -> float:
        """Microseconds per step of making block tables, or of updating the device's slots: the median."""
        return median_us(self.tables_seconds)

    @property
    def append_us(self) -> float:
        """Microseconds per step of storing keys and values, or of making room for them: the median."""
        return median_us(self.append_seconds)

    @property
    def rest_us(self) -> float:
        """Microseconds per step that are neither tables nor append, the median."""
        return median_us(np.subtract(self.step_seconds, self.tables_seconds) - self.append_seconds)

    @property
    def layer_us(self) -> float:
        """Microseconds of tables and append per layer and step, the median."""
        return median_us(np.add(self.tables_seconds, self.append_seconds) / self.num_layers)


@dataclass(frozen=True)
class RungHostTime(HostTime):
    """The host times of one run on a rung: a sample of a HostTimeRecord."""

    rung: str


class HostTimeRecord(Record):
    """What `python -m labkit.bench host-time` recorded: host times by rung and batch size."""

    @property
    def times(self) -> dict[str, list[HostTime]]:
        """Host times by rung, one per batch size, with the steps of all its runs."""
        sizes = {rung: [run.batch_size for run in self.only(rung=rung)] for rung in self.distinct("rung")}
        return {rung: [self.time(rung, size) for size in dict.fromkeys(of)] for rung, of in sizes.items()}

    def runs_of(self, rung: str, batch_size: int) -> list[HostTime]:
        """Host times of a rung at a batch size, one per run, in the order of the record."""
        return self.only(rung=rung, batch_size=batch_size)

    def time(self, rung: str, batch_size: int) -> HostTime:
        """Host times of a rung at a batch size, the steps of all runs together."""
        runs, lanes = self.runs_of(rung, batch_size), ("step_seconds", "tables_seconds", "append_seconds")
        together: dict[str, Any] = {
            lane: tuple(chain(*(getattr(run, lane) for run in runs))) for lane in lanes
        }
        return replace(runs[0], **together)

    def comparison(self, before: str, after: str, batch_size: int, of: str = "step") -> Comparison:
        """Compare two rungs' host times per step, or `of` it the "tables" or the "append" alone, taking the
        median step of each run."""

        def side(rung: str) -> tuple[float, ...]:
            return tuple(median(getattr(run, f"{of}_seconds")) for run in self.runs_of(rung, batch_size))

        return Comparison(before, after, side(before), side(after), {}, {})

    def table(self) -> pd.DataFrame:
        """Microseconds per step: a row per rung, a column per batch size."""
        rows = {
            rung: {f"B = {time.batch_size}": round(time.step_us) for time in times}
            for rung, times in self.times.items()
        }
        return table_of(rows, "rung")
