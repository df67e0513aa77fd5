"""Where the time of a decode step goes, from the torch profiler, and what the GPU does in it, by kernel."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

import pandas as pd

from labkit.results.record import Record


class Span(NamedTuple):
    """A named piece of time in a step, in microseconds; it starts at `start` from the step's start."""

    name: str
    start: float
    duration: float


@dataclass(frozen=True)
class StepProfile:
    """A profiled decode step: named ranges on the CPU, the operators inside them, and the GPU's kernels."""

    batch_size: int
    duration: float  # microseconds
    ranges: tuple[Span, ...]
    operators: tuple[Span, ...]  # aten operators that no other operator called
    kernels: tuple[Span, ...]  # empty on a CPU

    @property
    def gpu_busy(self) -> float:
        """The part of the step in which a kernel ran, 0 to 1."""
        return sum(span.duration for span in self.kernels) / self.duration

    def table(self) -> pd.DataFrame:
        """A row per named range, in order of time, and one for the rest of the step: microseconds, share and
        operators."""
        totals, rest = durations(self.ranges), "(rest of the step)"
        totals[rest] = self.duration - sum(totals.values())
        homes = [next((r.name for r in self.ranges if is_inside(op, r)), rest) for op in self.operators]
        return pd.DataFrame(
            {
                "microseconds": {n: round(t) for n, t in totals.items()},
                "% of step": {n: round(100 * t / self.duration, 1) for n, t in totals.items()},
                "operators": {name: homes.count(name) for name in totals},
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
class ProfiledStep:
    """Timed decode steps of `batch_size` requests, in seconds, and one more that was profiled.

    append_paths: how often each ran in the timed steps. limit_seconds: the least that such a step can take.
    """

    rung: str
    batch_size: int
    step_seconds: tuple[float, ...]
    append_paths: dict[str, int]
    limit_seconds: float
    profile: StepProfile

    @property
    def median_seconds(self) -> float:
        """Seconds per timed step, the median."""
        return median(self.step_seconds)


class ProfileRecord(Record):
    """Recorded profiles of a rung: a ProfiledStep per batch size."""

    @property
    def largest(self) -> ProfiledStep:
        """The sample of the largest batch."""
        return max(self.samples, key=lambda step: step.batch_size)


@dataclass(frozen=True)
class KernelTime:
    """A kernel or a copy of one decode step: how often it runs per step, and the time it takes in all.

    Of several steps the means, so `count` need not be whole.
    """

    name: str
    count: float
    us: float  # microseconds of all its runs in a step

    @property
    def is_copy(self) -> bool:
        """Whether this is a copy, or memory that is set, and no kernel."""
        return self.name.startswith(("Memcpy", "Memset"))


@dataclass(frozen=True)
class TracedStep:
    """A traced decode step of `batch_size` requests with `context_len` tokens each.

    Times are in microseconds, the mean of several steps.
    """

    rung: str
    batch_size: int
    context_len: int
    step_us: float
    gpu_busy_us: float
    kernels: tuple[KernelTime, ...]  # those that take longest first

    @property
    def idle_share(self) -> float:
        """The part of the step in which the GPU does nothing, 0 to 1."""
        return 1 - self.gpu_busy_us / self.step_us

    @property
    def num_kernels(self) -> int:
        """Kernels per step, rounded; copies do not count."""
        return round(sum(kernel.count for kernel in self.kernels if not kernel.is_copy))


class DeviceTimeRecord(Record):
    """Recorded traces of decode steps, by rung and batch size."""

    @property
    def steps(self) -> dict[tuple[str, int], TracedStep]:
        """Steps by (rung, batch size)."""
        keys = dict.fromkeys((step.rung, step.batch_size) for step in self.samples)
        return {key: self.step(*key) for key in keys}

    def step(self, rung: str, batch_size: int) -> TracedStep:
        """The step of a rung at a batch size, with the medians of its traces' times and the first trace's
        kernels. Raises RecordError if the record has none."""
        first, *_ = traced = self.only(rung=rung, batch_size=batch_size)
        medians = {
            name: median(getattr(each, name) for each in traced) for name in ("step_us", "gpu_busy_us")
        }
        return replace(first, **medians)

    def gpu_busy_us(self, rung: str) -> dict[int, float]:
        """Microseconds of the GPU's work per step, by batch size. Raises RecordError for an unknown rung."""
        self.only(rung=rung)
        return {size: step.gpu_busy_us for (number, size), step in self.steps.items() if number == rung}
