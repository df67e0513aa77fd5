"""Where the time of a decode step goes, from the torch profiler."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, ClassVar, NamedTuple, Self

import pandas as pd

from labkit.results.record import Record, Sample
from labkit.results.shape import COUNT, NUMBER, POSITIVE, TEXT, Shape

SPANS = [(TEXT, NUMBER, NUMBER)]


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

    def to_dict(self) -> dict:
        """The JSON form, in which a record holds it; `from_dict` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: dict) -> "StepProfile":
        """A profile from its JSON form, checked before."""
        lanes = {
            lane: tuple(Span(*span) for span in raw[lane]) for lane in ("ranges", "operators", "kernels")
        }
        return cls(raw["batch_size"], raw["duration"], **lanes)

    def range_shares(self) -> dict[str, float]:
        """The part of the step that each named range takes, 0 to 1, in order of time."""
        totals: dict[str, float] = {}
        for span in self.ranges:
            totals[span.name] = totals.get(span.name, 0.0) + span.duration
        return {name: total / self.duration for name, total in totals.items()}

    def table(self) -> pd.DataFrame:
        """A row per named range, in order of time, and one for the rest of the step: microseconds, share and
        operators."""
        totals: dict[str, float] = {}
        for span in self.ranges:
            totals[span.name] = totals.get(span.name, 0.0) + span.duration
        totals["(rest of the step)"] = self.duration - sum(totals.values())
        inside = dict.fromkeys(totals, 0)
        for op in self.operators:
            home = next((r.name for r in self.ranges if is_inside(op, r)), "(rest of the step)")
            inside[home] += 1
        table = pd.DataFrame(
            {
                "microseconds": {n: round(t) for n, t in totals.items()},
                "% of step": {n: round(100 * t / self.duration, 1) for n, t in totals.items()},
                "operators": inside,
            }
        )
        return table.loc[list(totals)]


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

    SHAPE: ClassVar[Shape] = {
        "rung": TEXT,
        "batch_size": COUNT,
        "step_seconds": [POSITIVE, ...],
        "append_paths": {str: COUNT},
        "limit_seconds": POSITIVE,
        "profile": {
            "batch_size": COUNT,
            "duration": POSITIVE,
            "ranges": SPANS,
            "operators": SPANS,
            "kernels": SPANS,
        },
    }

    @property
    def median_seconds(self) -> float:
        """Seconds per timed step, the median."""
        return median(self.step_seconds)

    def to_dict(self) -> dict:
        """The JSON form, in which a record holds it; `from_dict` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """A sample from its JSON form, checked before against `SHAPE`."""
        return cls(
            raw["rung"],
            raw["batch_size"],
            tuple(raw["step_seconds"]),
            raw["append_paths"],
            raw["limit_seconds"],
            StepProfile.from_dict(raw["profile"]),
        )


@dataclass(frozen=True)
class ProfileRecord(Record):
    """What `python -m labkit.bench profile` recorded: a ProfiledStep per batch size."""

    samples: tuple[ProfiledStep, ...]

    SAMPLE: ClassVar[type[Sample]] = ProfiledStep

    @property
    def largest(self) -> ProfiledStep:
        """The sample of the largest batch."""
        return max(self.samples, key=lambda step: step.batch_size)
