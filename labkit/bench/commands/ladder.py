"""ladder: all rungs on one workload, in turn, there and back again, with a record.

A round runs every rung twice: 00 01 … 01 00. Each rung is compared with the one below it.
"""

import argparse
import re
from functools import partial
from itertools import pairwise
from statistics import median

import pandas as pd
from tqdm import tqdm

from labkit.bench.commands.arguments import (
    add_common_arguments,
    add_rounds_argument,
    add_rungs_argument,
    add_workload_arguments,
    require_decoding,
    settings_of,
    workload_of,
)
from labkit.bench.commands.scheduler import run_sample
from labkit.bench.comparison import Comparison, in_turn, total_paths
from labkit.bench.limit import copy_bandwidth
from labkit.bench.record import describe_host, make_record, write_record
from labkit.bench.workload import Run, Workload
from labkit.ladder import LADDER
from labkit.paths import RESULTS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common_arguments(parser)
    add_rungs_argument(parser)
    add_workload_arguments(parser)
    add_rounds_argument(parser, 3)


def run(args: argparse.Namespace) -> None:
    require_decoding(args)
    workload = workload_of(args)
    bandwidth = copy_bandwidth(workload.device)
    runs = run_rungs(workload, args.rungs, args.rounds)
    print(
        f"{workload.model}, {len(workload.prompts)} requests, batches of {workload.scheduler.max_batch_size}"
    )
    print(ladder_table(workload, runs, bandwidth).to_string())
    samples = [run_sample(rung, workload, run, bandwidth) for rung, made in runs.items() for run in made]
    record = make_record("ladder", workload.device, bandwidth, settings_of(args), samples)
    path = args.json or RESULTS / f"ladder_{slug(describe_host(workload.device)['device'])}.json"
    write_record(record, path)
    print(f"Record: {path}")


def run_rungs(workload: Workload, rungs: tuple[str, ...], rounds: int) -> dict[str, list[Run]]:
    """Runs of each rung with a fresh engine each, after one warm-up run each."""
    with tqdm(total=len(rungs) * (1 + 2 * rounds), unit=" runs") as bar:

        def run_once(rung: str) -> Run:
            made = workload.run(workload.make_engine(LADDER[rung].options))
            bar.update()
            return made

        for rung in rungs:
            run_once(rung)
        made = in_turn([partial(run_once, rung) for rung in rungs], rounds)
    return dict(zip(rungs, made, strict=True))


def ladder_table(workload: Workload, runs: dict[str, list[Run]], bandwidth: float) -> pd.DataFrame:
    rows = {}
    for rung, made in runs.items():
        reached = median(workload.limit(run, bandwidth).seconds / run.decode_seconds for run in made)
        rows[rung] = {
            "title": LADDER[rung].title,
            "decode tokens/s": f"{median(run.decode_rate for run in made):,.0f}",
            "% of limit": f"{100 * reached:.1f}",
            "against the rung before": "",
            "append paths": total_paths(made),
        }
    for below, rung in pairwise(runs):
        sides = [tuple(run.decode_seconds for run in runs[r]) for r in (below, rung)]
        step = Comparison(below, rung, *sides, total_paths(runs[below]), total_paths(runs[rung]))
        rows[rung]["against the rung before"] = f"x{step.speedup:.3f} {step.interval} {step.verdict}"
    return pd.DataFrame.from_dict(rows, orient="index")


def slug(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_").lower()
