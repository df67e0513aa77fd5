"""ladder: runs all rungs on one workload in turn, compares each with the one below, and writes a record.

A round runs every rung twice: 00 01 … 01 00.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import pandas as pd
from tqdm import tqdm

from labkit.bench.commands.arguments import (
    RecordFlags,
    WorkloadFlags,
    require_decoding,
    rounds_flag,
    rungs_flag,
    workload_of,
)
from labkit.bench.commands.scheduler import run_sample
from labkit.bench.commands.targets import own_target, write_own
from labkit.bench.comparison import in_turn
from labkit.bench.limit import measure_bandwidth
from labkit.bench.record import make_record
from labkit.bench.workload import Workload
from labkit.engine.device import pick_device
from labkit.ladder import LADDER
from labkit.results import Run, RunsRecord
from labkit.results.runs import total_paths

ON_A_CPU = (
    "On a CPU most of a step is the model's arithmetic, which few rungs change, so expect *cannot tell*: "
    "what the rungs take off the host's time shows in `python -m labkit.bench host-time`."
)


@dataclass
class Settings(RecordFlags, WorkloadFlags):
    """The command's flags."""

    rungs: tuple[str, ...] = rungs_flag()
    rounds: int = rounds_flag(3)


def run(args: Settings) -> None:
    """Run each rung in turn, print a table, and write a record. Raises OptionError if nothing is decoded."""
    require_decoding(args)
    device = pick_device(args.device)
    path = own_target(args, "ladder", device)
    if device.type == "cpu":
        print(ON_A_CPU)
    workload = workload_of(args)
    bandwidth = measure_bandwidth(workload.model.device)
    runs = run_rungs(workload, args.rungs, args.rounds, args.mark_interrupted)
    print(
        f"{workload.model}, {len(workload.requests)} requests, batches of {workload.scheduler.max_batch_size}"
    )
    samples = [run_sample(rung, workload, run, bandwidth.copy) for rung, made in runs.items() for run in made]
    record = make_record("ladder", workload.model.device, bandwidth, args.settings, samples)
    print(ladder_table(record).to_string())
    print(f"Limit at {bandwidth}")
    write_own(record, path)


def run_rungs(
    workload: Workload, rungs: tuple[str, ...], rounds: int, interrupted: Callable[[], object] | None = None
) -> dict[str, list[Run]]:
    """The runs of each rung, made in turn after a warm-up run per rung; every run has a fresh engine.

    interrupted: as `in_turn` has it.
    """
    with tqdm(total=len(rungs) * (1 + 2 * rounds), unit=" runs") as bar:

        def run_once(rung: str) -> Run:
            made = workload.run(workload.make_engine(LADDER[rung].options))
            bar.update()
            return made

        for rung in rungs:
            run_once(rung)
        made = in_turn([partial(run_once, rung) for rung in rungs], rounds, interrupted=interrupted)
    return dict(zip(rungs, made, strict=True))


def ladder_table(record: RunsRecord) -> pd.DataFrame:
    """A row per rung: its decode rate, share of the limit, and the comparison with the rung before it."""
    rungs = list(record.rates)
    rows = {
        rung: {
            "title": LADDER[rung].title,
            "decode tokens/s": f"{record.rate(rung):,.0f}",
            "% of limit": f"{100 * record.share_of_limit(rung):.1f}",
            "against the rung before": "",
            "append paths": total_paths(record.runs_of(rung)),
        }
        for rung in rungs
    }
    for below, rung in pairwise(rungs):
        step = record.comparison(below, rung)
        rows[rung]["against the rung before"] = f"x{step.speedup:.3f} {step.interval} {step.verdict}"
    return pd.DataFrame.from_dict(rows, orient="index")
