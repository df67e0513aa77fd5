"""Where the time of a decode step goes, from the torch profiler; and the command that shows it."""

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm

from labkit.bench.arguments import COUNT, LENGTH, ModelFlags, RungFlag, batch_sizes_flag, model_of
from labkit.bench.flags import ByDevice, flag
from labkit.bench.limit import decode_limit, measure_bandwidth, synchronize, time_decode_steps
from labkit.bench.record import record_if_asked
from labkit.bench.workload import difference
from labkit.engine import CacheConfig, InferenceEngine, SchedulerConfig
from labkit.ladder import LADDER
from labkit.results.kernels import qualified_name
from labkit.results.profiles import ProfiledStep, Span, StepProfile, durations
from labkit.watch import steady_decode

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


def traced_events(engine: InferenceEngine, num_steps: int) -> list[dict]:
    """The Chrome trace's events of so many steps of an engine that is in `watch.steady_decode`."""
    with profile(activities=activities_of(engine.device), acc_events=True) as profiler:
        for _ in range(num_steps):
            engine.step()
        synchronize(engine.device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_text())["traceEvents"]


@dataclass
class Profile(ModelFlags, RungFlag):
    """Show where a decode step's time goes, and how far the step is from the limit."""

    batch_sizes: tuple[int, ...] = batch_sizes_flag(ByDevice((1, 8, 64), (1, 4, 16)))
    context: int = flag(256, "each prompt has this many tokens", LENGTH)
    steps: int = flag(30, "this many decode steps are timed for each batch size", COUNT)

    def run(self) -> None:
        engine = InferenceEngine(
            model_of(self),
            LADDER[self.rung].options,
            device=self.device,
            cache=CacheConfig(prefix_cache=False),
            scheduler=SchedulerConfig(
                max_batch_size=max(self.batch_sizes), prefill_max_batch_size=max(self.batch_sizes)
            ),
        )
        bandwidth = measure_bandwidth(engine.device)
        samples: list[ProfiledStep] = []
        with self.until_interrupted(samples):
            for batch_size in tqdm(self.batch_sizes, desc="batch sizes"):
                prompts = [[i % engine.model.config.vocab_size for i in range(self.context)]] * batch_size
                with steady_decode(engine, prompts):
                    paths_before = engine.stats().append_paths
                    context_lens = [s.num_tokens + self.steps // 2 for s in engine.scheduler.running.values()]
                    step_seconds = time_decode_steps(engine, self.steps)
                    append_paths = difference(paths_before, engine.stats().append_paths)
                    profiled = profile_decode_step(engine)
                limit = decode_limit(engine.model.network, context_lens, bandwidth.copy).seconds
                timed = tuple(step_seconds), append_paths, limit, profiled
                samples.append(ProfiledStep(self.rung, batch_size, *timed))
        print(f"{engine.model}, rung {self.rung}, context {self.context}, {bandwidth}")
        for sample in samples:
            step, limit = sample.median_seconds, sample.limit_seconds
            print(
                f"\nB = {sample.batch_size}: step {1e3 * step:.2f} ms, {100 * limit / step:.1f} % "
                f"of the limit ({1e3 * limit:.3f} ms), {sample.batch_size / step:,.0f} tokens/s"
            )
            for name, us in durations(sample.profile.ranges).items():
                print(f"  {name:<50} {100 * us / sample.profile.duration:5.1f} % of the profiled step")
        record_if_asked(self, "profile", engine.device, samples, bandwidth)
