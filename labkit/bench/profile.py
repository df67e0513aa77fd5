"""Where the time of a decode step goes, from the torch profiler."""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from labkit.bench.limit import synchronize
from labkit.engine import InferenceEngine
from labkit.results.kernels import qualified_name
from labkit.results.profiles import Span, StepProfile

# torch 2.13's profiler announces its start and stop on stderr, in the middle of a notebook.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

RANGE_PREFIX = "labkit."
STEP_RANGE = "labkit.step"


def profile_decode_step(engine: InferenceEngine) -> StepProfile:
    """Profile one decode step of an engine that is in `watch.steady_decode`."""
    batch_size = len(engine.scheduler.running)
    with profile(activities=activities_of(engine.device), acc_events=True) as profiler:
        engine.step()  # not read: it pays for setting the profiler up
        synchronize(engine.device)
        with torch.profiler.record_function(STEP_RANGE):
            engine.step()
        synchronize(engine.device)
    events = profiler.events()
    step = next(e for e in events if e.name == STEP_RANGE and e.device_type == DeviceType.CPU)
    origin = step.time_range.start
    in_step = [e for e in events if e.time_range.start >= origin and e is not step]
    on_cpu = [e for e in in_step if e.device_type == DeviceType.CPU]
    on_gpu = [e for e in in_step if e.device_type == DeviceType.CUDA]
    aten = [e for e in on_cpu if e.name.startswith("aten::")]

    def spans(chosen: Sequence) -> tuple[Span, ...]:
        rows = ((e.name, e.time_range.start - origin, e.time_range.elapsed_us()) for e in chosen)
        made = [Span(qualified_name(name), round(start, 1), round(us, 1)) for name, start, us in rows]
        return tuple(sorted(made, key=lambda s: s.start))

    return StepProfile(
        batch_size=batch_size,
        duration=step.time_range.elapsed_us(),
        ranges=spans([e for e in on_cpu if e.name.startswith(RANGE_PREFIX)]),
        operators=spans([e for e in aten if not (e.cpu_parent and e.cpu_parent.name.startswith("aten::"))]),
        kernels=spans([e for e in on_gpu if not e.name.startswith(RANGE_PREFIX)]),
    )


def activities_of(device: torch.device) -> list[ProfilerActivity]:
    """What the profiler records on this device: the CPU, and a GPU's kernels."""
    on_gpu = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    return [ProfilerActivity.CPU, *on_gpu]


def traced_events(engine: InferenceEngine) -> list[dict]:
    """The Chrome trace's events of a step of an engine that is in `watch.steady_decode`."""
    with profile(activities=activities_of(engine.device), acc_events=True) as profiler:
        engine.step()
        synchronize(engine.device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_text())["traceEvents"]
