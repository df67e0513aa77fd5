"""host-time: times what a decode step costs the host, the model taken out, for each rung and batch size."""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from statistics import median

import pandas as pd
import torch
from tqdm import tqdm

from labkit.bench.commands.arguments import (
    OWN_RECORD,
    add_batch_sizes_argument,
    add_count_argument,
    add_device_arguments,
    add_rounds_argument,
    add_rungs_argument,
    length,
    list_of,
    settings_of,
)
from labkit.bench.commands.interruption import until_interrupted
from labkit.bench.commands.targets import own_target, write_own
from labkit.bench.comparison import in_turn
from labkit.bench.host_time import BATCH_SIZES, LENGTHS, host_engine, time_host_steps
from labkit.bench.limit import measure_bandwidth
from labkit.bench.record import make_record
from labkit.engine.device import pick_device
from labkit.ladder import LADDER
from labkit.results.host_time import HostTime, RungHostTime


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_device_arguments(parser, OWN_RECORD)
    add_rungs_argument(parser)
    add_rounds_argument(parser, 3)
    add_batch_sizes_argument(parser, BATCH_SIZES)
    parser.add_argument(
        "--prompt-lengths",
        type=list_of(length),
        default=",".join(map(str, LENGTHS)),
        metavar="N,N,...",
        help="prompts in turn have this many tokens; one number makes all positions equal "
        "(default: %(default)s)",
    )
    add_count_argument(parser, "--steps", 40, "this many steps are timed in each of the runs")


def run(args: argparse.Namespace) -> None:
    """Time the host's part of a step for each rung and batch size; print a table and write a record."""
    device = pick_device(args.device)
    path = own_target(args, "host_time", device)
    times: dict[str, list[HostTime]] = {rung: [] for rung in args.rungs}
    with until_interrupted(args, times[args.rungs[0]]):
        for batch_size in tqdm(args.batch_sizes, desc="batch sizes"):
            measures = [partial(one_run, rung, batch_size, device, args) for rung in args.rungs]
            for rung, made in zip(args.rungs, in_turn(measures, args.rounds), strict=True):
                times[rung] += made
    print("GPT-2's layers, no model: microseconds of a step, the median")
    print(host_table(times).to_string())
    settings = {**settings_of(args), "model": "none, GPT-2's layers"}
    samples = [RungHostTime(rung, time) for rung, made in times.items() for time in made]
    write_own(make_record("host_time", device, measure_bandwidth(device), settings, samples), path)


def one_run(rung: str, batch_size: int, device: torch.device, args: argparse.Namespace) -> HostTime:
    """Host times of one run on a rung, with a fresh engine."""
    engine = host_engine(LADDER[rung].options, batch_size, device)
    return time_host_steps(engine, args.steps, args.prompt_lengths)


PARTS = {"step": attrgetter("step_us"), "tables + append, a layer": attrgetter("layer_us")}


def host_table(times: Mapping[str, Sequence[HostTime]]) -> pd.DataFrame:
    """Microseconds, the median: per rung a row for a step and one for tables and append per layer; a column
    per batch size."""
    rows = {}
    for rung, made in times.items():
        sizes = dict.fromkeys(t.batch_size for t in made)
        for name, value in PARTS.items():
            rows[f"{rung} {name}"] = {
                f"B = {b}": round(median(value(t) for t in made if t.batch_size == b)) for b in sizes
            }
    return pd.DataFrame.from_dict(rows, orient="index")
