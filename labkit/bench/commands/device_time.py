"""device-time: shows what the GPU does in a steady decode, kernel by kernel, and how long it waits.

Times are the GPU's own, from a trace. A trace slows the host down: where the GPU waits for the host, a step
takes longer here than it does untraced.
"""

from dataclasses import dataclass
from itertools import product

import pandas as pd
from tqdm import tqdm

from labkit.bench.commands.arguments import COUNT, LENGTH, ModelFlags, batch_sizes_flag, model_of, rungs_flag
from labkit.bench.commands.flags import ByDevice, flag
from labkit.bench.commands.targets import record_if_asked
from labkit.bench.device_time import device_time
from labkit.engine import CacheConfig, InferenceEngine, SchedulerConfig
from labkit.engine.device import pick_device
from labkit.ladder import LADDER
from labkit.results import TracedStep
from labkit.watch import steady_prompts


@dataclass
class Settings(ModelFlags):
    """The command's flags."""

    rungs: tuple[str, ...] = rungs_flag()
    batch_sizes: tuple[int, ...] = batch_sizes_flag(ByDevice((1, 8, 64), (1, 4, 16)))
    context: int = flag(256, "each request holds this many tokens", LENGTH)
    steps: int = flag(30, "the times are averages of this many steps", COUNT)


def run(args: Settings) -> None:
    """Trace each rung at each batch size, print its kernels, and write a record if asked for."""
    device = pick_device(args.device)
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
            made = device_time(engine, rung, prompts, args.steps)
            print(
                f"\nrung {rung}, B = {batch_size}: {made.step_us:.0f} µs per step, idle {made.idle_share:.1%}"
            )
            print(kernel_table(made).to_string())
            samples.append(made)
    record_if_asked(args, "decode_kernels", device, samples)


def kernel_table(made: TracedStep) -> pd.DataFrame:
    """The twelve kernels of a step that take longest: a row per kernel."""
    rows = [(k.name[:70], round(k.count, 1), round(k.us, 1)) for k in made.kernels[:12]]
    return pd.DataFrame(rows, columns=["kernel", "per step", "µs"]).set_index("kernel")
