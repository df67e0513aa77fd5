"""ladder: runs all rungs on one workload in turn, compares each with the one below, and writes a record.

A round runs every rung twice: 00 01 … 01 00.
"""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median

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
from labkit.bench.commands.flags import ByDevice, replaced_default
from labkit.bench.commands.scheduler import run_sample
from labkit.bench.commands.targets import own_target, write_own
from labkit.bench.comparison import in_turn, run_fresh
from labkit.bench.limit import measure_bandwidth
from labkit.bench.loads import ALIKE
from labkit.bench.record import make_record
from labkit.engine.device import pick_device
from labkit.ladder import LADDER
from labkit.results import RunsRecord
from labkit.results.runs import total_paths

ON_A_CPU = (
    "On a CPU the model's arithmetic is most of a run, and few rungs change that, so expect *cannot tell* of "
    "many: what they take off the host's time shows in `python -m labkit.bench host-time`."
)


@dataclass
class Settings(RecordFlags, WorkloadFlags):
    load: str = replaced_default(WorkloadFlags, "load", ByDevice(ALIKE, "assistant"))
    num_requests: int = replaced_default(WorkloadFlags, "num_requests", ByDevice(16, 32))
    max_new_tokens: int = replaced_default(WorkloadFlags, "max_new_tokens", ByDevice(64, 32))
    max_batch_size: int = replaced_default(WorkloadFlags, "max_batch_size", ByDevice(8, 16))
    rungs: tuple[str, ...] = rungs_flag()
    rounds: int = rounds_flag(3)


def run(args: Settings) -> None:
    """Raises OptionError if nothing is decoded."""
    require_decoding(args)
    device = pick_device(args.device)
    path = own_target(args, "ladder", device)
    if device.type == "cpu":
        print(ON_A_CPU)
    workload = workload_of(args)
    bandwidth = measure_bandwidth(workload.model.device)
    measures = [partial(run_fresh, workload, LADDER[rung].options) for rung in args.rungs]
    with tqdm(total=2 * args.rounds * len(measures), unit=" runs") as bar:
        made = in_turn(measures, args.rounds, bar.update, args.mark_interrupted, warm_up=1)
    print(
        f"{workload.model}, {len(workload.requests)} requests, batches of {workload.scheduler.max_batch_size}"
    )
    by_rung = zip(args.rungs, made, strict=True)
    samples = [run_sample(rung, workload, run, bandwidth.copy) for rung, runs in by_rung for run in runs]
    record = make_record("ladder", workload.model.device, bandwidth, args.settings, samples)
    print(ladder_table(record).to_string())
    print(f"Limit at {bandwidth}")
    write_own(record, path)


def ladder_table(record: RunsRecord) -> pd.DataFrame:
    """A row per rung: its rate, and the comparison with the rung before it. Where requests are alike, that is
    of decoding, with the share of its limit; on any other load, where prompts matter, of whole runs."""
    is_alike = record.settings["load"] == ALIKE
    compare = record.comparison if is_alike else record.whole_run_comparison
    rates = record.rates if is_alike else record.throughputs
    rows = {
        rung: {
            "title": LADDER[rung].title,
            "decode tokens/s" if is_alike else "tokens/s": f"{median(made):,.0f}",
            **({"% of limit": f"{100 * record.share_of_limit(rung):.1f}"} if is_alike else {}),
            "against the rung before": "",
            "append paths": total_paths(record.runs_of(rung)),
        }
        for rung, made in rates.items()
    }
    for below, rung in pairwise(rates):
        step = compare(below, rung)
        rows[rung]["against the rung before"] = f"x{step.speedup:.3f} {step.interval} {step.verdict}"
    return pd.DataFrame.from_dict(rows, orient="index")
