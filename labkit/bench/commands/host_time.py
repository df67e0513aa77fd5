"""host-time: what a decode step costs the host with the model taken out, for each rung and batch size."""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from statistics import median

import pandas as pd
import torch
from tqdm import tqdm

from labkit.bench.commands.arguments import (
    add_device_arguments,
    add_rounds_argument,
    add_rungs_argument,
    batch,
    length,
    list_of,
    positive,
    settings_of,
)
from labkit.bench.comparison import in_turn
from labkit.bench.host_time import BATCH_SIZES, LENGTHS, host_engine, time_host_steps
from labkit.bench.limit import copy_bandwidth
from labkit.bench.record import make_record, write_record
from labkit.engine.device import pick_device
from labkit.ladder import LADDER
from labkit.results.host_time import HostTime, RungHostTime


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_device_arguments(parser)
    add_rungs_argument(parser)
    add_rounds_argument(parser, 3)
    parser.add_argument(
        "--batch-sizes", type=list_of(batch), default=BATCH_SIZES, help="requests decoded together"
    )
    parser.add_argument(
        "--prompt-lengths",
        type=list_of(length),
        default=LENGTHS,
        help="in turn; one makes all positions equal",
    )
    parser.add_argument("--steps", type=positive, default=40, help="steps timed in each of the runs")


def run(args: argparse.Namespace) -> None:
    """Time the host's part of a step for each rung and batch size; print a table and write a record."""
    device = pick_device(args.device)
    times: dict[str, list[HostTime]] = {rung: [] for rung in args.rungs}
    for batch_size in tqdm(args.batch_sizes, desc="batch sizes"):
        measures = [partial(one_run, rung, batch_size, device, args) for rung in args.rungs]
        for rung, made in zip(args.rungs, in_turn(measures, args.rounds), strict=True):
            times[rung] += made
    print("GPT-2's layers, no model: microseconds of a step, the median")
    print(host_table(times).to_string())
    if args.json:
        settings = {**settings_of(args), "model": "none, GPT-2's layers"}
        samples = [RungHostTime(rung, time) for rung, made in times.items() for time in made]
        record = make_record("host_time", device, copy_bandwidth(device), settings, samples)
        write_record(record, args.json)


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
