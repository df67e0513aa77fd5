"""Where the time of a decode step goes, from the torch profiler."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import pandas as pd

from labkit.results.record import Record, Sample
from labkit.results.typed import Count, Positive, Some


class Span(NamedTuple):
    """A named piece of time in a step, in microseconds; it starts at `start` from the step's start."""

    name: str
    start: float
    duration: float


@dataclass(frozen=True)
class StepProfile:
    """A profiled decode step: named ranges on the CPU, the operators inside them, and the GPU's kernels."""

    batch_size: Count
    duration: Positive  # microseconds
    ranges: tuple[Span, ...]
    operators: tuple[Span, ...]  # aten operators that no other operator called
    kernels: tuple[Span, ...]  # empty on a CPU

    @property
    def gpu_busy(self) -> float:
        """The part of the step in which a kernel ran, 0 to 1."""
        return sum(span.duration for span in self.kernels) / self.duration

    def range_shares(self) -> dict[str, float]:
        """The part of the step that each named range takes, 0 to 1, in order of time."""
        return {name: total / self.duration for name, total in durations(self.ranges).items()}

    def table(self) -> pd.DataFrame:
        """A row per named range, in order of time, and one for the rest of the step: microseconds, share and
        operators."""
        totals = durations(self.ranges)
        totals["(rest of the step)"] = self.duration - sum(totals.values())
        inside = dict.fromkeys(totals, 0)
        for op in self.operators:
            home = next((r.name for r in self.ranges if is_inside(op, r)), "(rest of the step)")
            inside[home] += 1
        return pd.DataFrame(
            {
                "microseconds": {n: round(t) for n, t in totals.items()},
                "% of step": {n: round(100 * t / self.duration, 1) for n, t in totals.items()},
                "operators": inside,
            }
        )


def durations(spans: Sequence[Span]) -> dict[str, float]:
    """Microseconds of all spans of a name, by name, in order of time."""
    totals: dict[str, float] = {}
    for span in spans:
        totals[span.name] = totals.get(span.name, 0.0) + span.duration
    return totals


def is_inside(inner: Span, outer: Span) -> bool:
    """Whether `inner` begins within `outer`."""
    return outer.start <= inner.start < outer.start + outer.duration


@dataclass(frozen=True)
class ProfiledStep(Sample):
    """Timed decode steps of `batch_size` requests, in seconds, and one more that was profiled.

    append_paths: how often each ran in the timed steps. limit_seconds: the least that such a step can take.
    """

    rung: str
    batch_size: Count
    step_seconds: Some[Positive]
    append_paths: dict[str, Count]
    limit_seconds: Positive
    profile: StepProfile

    @property
    def median_seconds(self) -> float:
        """Seconds per timed step, the median."""
        return median(self.step_seconds)


@dataclass(frozen=True)
class ProfileRecord(Record):
    """What `python -m labkit.bench profile` recorded: a ProfiledStep per batch size."""

    samples: Some[ProfiledStep]

    @property
    def largest(self) -> ProfiledStep:
        """The sample of the largest batch."""
        return max(self.samples, key=lambda step: step.batch_size)
