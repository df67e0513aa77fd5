"""host-time: times what a decode step costs the host, the model taken out, for each rung and batch size."""

from dataclasses import dataclass
from functools import partial
from statistics import median

import pandas as pd
import torch
from tqdm import tqdm

from labkit.bench.commands.arguments import (
    COUNT,
    LENGTH_LIST,
    RecordFlags,
    batch_sizes_flag,
    rounds_flag,
    rungs_flag,
)
from labkit.bench.commands.flags import flag
from labkit.bench.commands.targets import own_target, write_own
from labkit.bench.comparison import in_turn
from labkit.bench.host_time import BATCH_SIZES, LENGTHS, host_engine, time_host_steps
from labkit.bench.limit import measure_bandwidth
from labkit.bench.record import make_record
from labkit.engine.device import pick_device
from labkit.ladder import LADDER
from labkit.results.host_time import HostTime, RungHostTime


@dataclass
class Settings(RecordFlags):
    rungs: tuple[str, ...] = rungs_flag()
    rounds: int = rounds_flag(3)
    batch_sizes: tuple[int, ...] = batch_sizes_flag(BATCH_SIZES)
    prompt_lengths: tuple[int, ...] = flag(
        LENGTHS,
        "prompts in turn have this many tokens; one number makes all positions equal",
        LENGTH_LIST,
    )
    steps: int = flag(40, "this many steps are timed in each of the runs", COUNT)


def run(args: Settings) -> None:
    device = pick_device(args.device)
    path = own_target(args, "host_time", device)
    times: dict[str, list[HostTime]] = {rung: [] for rung in args.rungs}
    with args.until_interrupted(times[args.rungs[0]]):
        for batch_size in tqdm(args.batch_sizes, desc="batch sizes"):
            measures = [partial(one_run, rung, batch_size, device, args) for rung in args.rungs]
            for rung, made in zip(args.rungs, in_turn(measures, args.rounds), strict=True):
                times[rung] += made
    print("GPT-2's layers, no model: microseconds of a step, the median")
    rows = {}
    for rung, made in times.items():
        sizes = dict.fromkeys(t.batch_size for t in made)
        for name, us in ("step", "step_us"), ("tables + append, a layer", "layer_us"):
            rows[f"{rung} {name}"] = {
                f"B = {b}": round(median(getattr(t, us) for t in made if t.batch_size == b)) for b in sizes
            }
    print(pd.DataFrame.from_dict(rows, orient="index").to_string())
    settings = {**args.settings, "model": "none, GPT-2's layers"}
    samples = [RungHostTime(**vars(time), rung=rung) for rung, made in times.items() for time in made]
    write_own(make_record("host_time", device, measure_bandwidth(device), settings, samples), path)


def one_run(rung: str, batch_size: int, device: torch.device, args: Settings) -> HostTime:
    engine = host_engine(LADDER[rung].options, batch_size, device)
    return time_host_steps(engine, args.steps, args.prompt_lengths)
