"""What the GPU does in a steady decode, from a trace: each kernel's time, and how long it does nothing."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch.profiler import profile

from labkit.bench.limit import synchronize
from labkit.bench.profile import activities_of
from labkit.engine import InferenceEngine
from labkit.errors import OptionError
from labkit.results.device_time import KernelTime, TracedStep
from labkit.watch import steady_decode

TO_HOST = ("DtoH", "_numbers_to_host_kernel")  # in the names of what brings tokens to the host
WARMUP_STEPS = 5  # of the profiler: the first ones pay for its start


def device_time(
    engine: InferenceEngine, rung: str, prompts: Sequence[Sequence[int]], num_steps: int = 30
) -> TracedStep:
    """Trace `num_steps` decode steps of these prompts, which have one length. rung: the engine's.

    Raises OptionError without a GPU.
    """
    if engine.device.type != "cuda":
        raise OptionError("the time of kernels is measured on a CUDA GPU; there is none here")
    with steady_decode(engine, prompts, max_new_tokens=2 * WARMUP_STEPS + num_steps + 5):
        with profile(activities=activities_of(engine.device), acc_events=True) as profiler:
            for _ in range(WARMUP_STEPS + num_steps):
                engine.step()
            synchronize(engine.device)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
    context_len = len(prompts[0]) + WARMUP_STEPS + num_steps // 2
    return read_device_time(events, rung, len(prompts), context_len, num_steps)


def read_device_time(
    events: Sequence[dict], rung: str, batch_size: int, context_len: int, num_steps: int
) -> TracedStep:
    """The mean of the last `num_steps` steps of a Chrome trace.

    events: of WARMUP_STEPS + `num_steps` steps, each of which ends with copies to the host, or with a kernel
    that writes there. A kernel that is launched early waits inside for the one before it, so its time is
    counted from where that one ends.
    """
    on_device = sorted(
        (e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")), key=lambda e: e["ts"]
    )
    copies = [i for i, e in enumerate(on_device) if any(name in e["name"] for name in TO_HOST)]
    ends = copies[:: -(len(copies) // (WARMUP_STEPS + num_steps))]  # the last copy of each step, backwards
    first, last = ends[num_steps], ends[0]
    latest = began = on_device[first]["ts"] + on_device[first]["dur"]
    totals: dict[str, list[float]] = {}
    for event in on_device[first + 1 : last + 1]:
        end = event["ts"] + event["dur"]
        total = totals.setdefault(event["name"], [0, 0.0])
        total[0] += 1
        total[1] += max(0.0, end - max(event["ts"], latest))
        latest = max(latest, end)
    kernels = [KernelTime(name, n / num_steps, us / num_steps) for name, (n, us) in totals.items()]
    return TracedStep(
        rung,
        batch_size,
        context_len,
        (latest - began) / num_steps,
        sum(kernel.us for kernel in kernels),
        tuple(sorted(kernels, key=lambda kernel: -kernel.us)),
    )
