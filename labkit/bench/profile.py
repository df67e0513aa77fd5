"""Where the time of a decode step goes, from the torch profiler."""

import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from labkit.bench.limit import synchronize
from labkit.engine import InferenceEngine
from labkit.watch import steady_decode

# torch 2.13's profiler announces its start and stop on stderr, in the middle of a notebook.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

RANGE_PREFIX = "labkit."
STEP_RANGE = "labkit.step"
TRACED_STEPS = 5


class Span(NamedTuple):
    """A piece of time, in microseconds from the step's start."""

    name: str
    start: float
    duration: float


@dataclass(frozen=True)
class StepProfile:
    """One decode step: the named ranges on the CPU, the operators inside them, and the GPU's kernels."""

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
        """For a record; `from_dict` is the way back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: dict) -> "StepProfile":
        lanes = {
            lane: tuple(Span(*span) for span in raw[lane]) for lane in ("ranges", "operators", "kernels")
        }
        return cls(raw["batch_size"], raw["duration"], **lanes)

    def table(self) -> pd.DataFrame:
        """Microseconds and share of each named range, in order of time; the rest of the step last."""
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
    return outer.start <= inner.start < outer.start + outer.duration


def profile_decode_step(engine: InferenceEngine) -> StepProfile:
    """Profile one step of an engine in `steady_decode`."""
    batch_size = len(engine.scheduler.running)
    with profile(activities=activities_of(engine.device), acc_events=True) as profiler:
        engine.step()  # not read: it pays for setting the profiler up
        synchronize(engine.device)
        with torch.profiler.record_function(STEP_RANGE):
            engine.step()
        synchronize(engine.device)
    return read_profile(profiler.events(), batch_size)


def activities_of(device: torch.device) -> list[ProfilerActivity]:
    on_gpu = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    return [ProfilerActivity.CPU, *on_gpu]


def read_profile(events: Sequence, batch_size: int) -> StepProfile:
    step = next(e for e in events if e.name == STEP_RANGE and e.device_type == DeviceType.CPU)
    origin = step.time_range.start
    in_step = [e for e in events if e.time_range.start >= origin and e is not step]
    on_cpu = [e for e in in_step if e.device_type == DeviceType.CPU]
    on_gpu = [e for e in in_step if e.device_type == DeviceType.CUDA]

    def spans(chosen: Sequence) -> tuple[Span, ...]:
        made = [
            Span(
                short_name(e.name), round(e.time_range.start - origin, 1), round(e.time_range.elapsed_us(), 1)
            )
            for e in chosen
        ]
        return tuple(sorted(made, key=lambda s: s.start))

    return StepProfile(
        batch_size=batch_size,
        duration=step.time_range.elapsed_us(),
        ranges=spans([e for e in on_cpu if e.name.startswith(RANGE_PREFIX)]),
        operators=spans([e for e in on_cpu if e.name.startswith("aten::") and not is_operator(e.cpu_parent)]),
        kernels=spans([e for e in on_gpu if not e.name.startswith(RANGE_PREFIX)]),
    )


def short_name(name: str) -> str:
    """A kernel's name without its return type, template and parameters, which can fill a page."""
    return re.split(r"[<(]", name.removeprefix("void ").replace("(anonymous namespace)", "anonymous"))[
        0
    ].strip()


def is_operator(event: object | None) -> bool:
    return event is not None and event.name.startswith("aten::")


def write_trace(engine: InferenceEngine, prompts: Sequence[Sequence[int]], path: Path) -> None:
    """A Chrome trace of TRACED_STEPS steady decode steps of these prompts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        steady_decode(engine, prompts, max_new_tokens=TRACED_STEPS + 10),
        profile(activities=activities_of(engine.device)) as profiler,
    ):
        for _ in range(TRACED_STEPS):
            engine.step()
        synchronize(engine.device)
    profiler.export_chrome_trace(str(path))
