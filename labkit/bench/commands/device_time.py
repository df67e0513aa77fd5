"""device-time: shows what the GPU does in a steady decode, kernel by kernel, and how long it waits.

Times are the GPU's own, from a trace. A trace slows the host down: where the GPU waits for the host, a step
takes longer here than it does untraced.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import pandas as pd
from tqdm import tqdm

from labkit.bench.commands.arguments import COUNT, LENGTH, ModelFlags, batch_sizes_flag, model_of, rungs_flag
from labkit.bench.commands.flags import ByDevice, flag
from labkit.bench.commands.targets import record_if_asked
from labkit.bench.profile import traced_events
from labkit.engine import CacheConfig, InferenceEngine, SchedulerConfig
from labkit.engine.device import pick_device
from labkit.errors import OptionError
from labkit.ladder import LADDER
from labkit.results.profiles import KernelTime, TracedStep
from labkit.watch import steady_decode, steady_prompts

TO_HOST = ("DtoH", "_numbers_to_host_kernel")  # in the names of what brings tokens to the host
WARMUP_STEPS = 5  # of the profiler: the first ones pay for its start


@dataclass
class Settings(ModelFlags):
    rungs: tuple[str, ...] = rungs_flag()
    batch_sizes: tuple[int, ...] = batch_sizes_flag(ByDevice((1, 8, 64), (1, 4, 16)))
    context: int = flag(256, "each request holds this many tokens", LENGTH)
    steps: int = flag(30, "the times are averages of this many steps", COUNT)


def run(args: Settings) -> None:
    """Raises OptionError without a GPU."""
    device = pick_device(args.device)
    if device.type != "cuda":
        raise OptionError("the time of kernels is measured on a CUDA GPU; there is none here")
    model = model_of(args)
    samples: list[TracedStep] = []
    pairs = list(product(args.batch_sizes, args.rungs))
    with args.until_interrupted(samples):
        for batch_size, rung in tqdm(pairs, desc="batch sizes and rungs"):
            prompts = steady_prompts(batch_size, (args.context,))
            engine = InferenceEngine(
                model,
                LADDER[rung].options,
                device=device,
                cache=CacheConfig(prefix_cache=False),
                scheduler=SchedulerConfig(batch_size, batch_size, batch_size * args.context),
            )
            with steady_decode(engine, prompts, max_new_tokens=2 * WARMUP_STEPS + args.steps + 5):
                events = traced_events(engine, WARMUP_STEPS + args.steps)
            context_len = args.context + WARMUP_STEPS + args.steps // 2
            made = read_device_time(events, rung, batch_size, context_len, args.steps)
            print(
                f"\nrung {rung}, B = {batch_size}: {made.step_us:.0f} µs per step, idle {made.idle_share:.1%}"
            )
            print(kernel_table(made).to_string())
            samples.append(made)
    record_if_asked(args, "decode_kernels", device, samples)


def kernel_table(made: TracedStep) -> pd.DataFrame:
    rows = [(k.name[:70], round(k.count, 1), round(k.us, 1)) for k in made.kernels[:12]]
    return pd.DataFrame(rows, columns=["kernel", "per step", "µs"]).set_index("kernel")


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
