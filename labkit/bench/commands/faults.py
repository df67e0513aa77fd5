"""faults: runs random schedules of requests in which calls fail, and counts what became of the requests.

Every schedule is a small engine with too few blocks. Its requests join, end, are cancelled, share prompts and
are preempted, and one or two calls fail. A schedule that breaks a promise is printed with its seed and its
number: --only runs that one again, and shows where it failed.
"""

import argparse
import multiprocessing
import random
import signal
import time
from collections import Counter
from functools import partial

import torch
from tqdm import tqdm

from labkit.bench.commands.arguments import (
    add_device_arguments,
    add_rungs_argument,
    natural,
    positive,
    settings_of,
)
from labkit.bench.commands.interruption import until_interrupted
from labkit.bench.fault_schedules import draw_schedule
from labkit.bench.faults import Outcome, points_called, run_schedule
from labkit.bench.limit import measure_bandwidth
from labkit.bench.record import make_record, write_record
from labkit.engine.device import pick_device
from labkit.ladder import LADDER
from labkit.results.faults import RungFaults

NAME = "random:small"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_device_arguments(parser)
    add_rungs_argument(parser)
    parser.add_argument(
        "--schedules",
        type=positive,
        default=100,
        help="each rung has this many schedules (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=natural,
        default=0,
        help="all schedules are drawn with this seed (default: %(default)s)",
    )
    parser.add_argument(
        "--processes", type=positive, default=1, help="this many rungs run at a time (default: %(default)s)"
    )
    parser.add_argument(
        "--only", type=natural, help="the schedule with this number runs alone (default: all)"
    )


def run(args: argparse.Namespace) -> None:
    """Run the schedules of each rung, print what became of them, and write a record."""
    device = pick_device(args.device)
    if args.only is not None:
        for rung in args.rungs:
            print(run_numbered(rung, args.seed, args.only, str(device)))
        return
    of_rung = partial(faults_of, num_schedules=args.schedules, seed=args.seed, device=device)
    samples: list[RungFaults] = []
    with until_interrupted(args, samples):
        if args.processes == 1:
            samples.extend(map(of_rung, args.rungs))
        else:
            fresh = multiprocessing.get_context("spawn")  # a process that was forked has no CUDA
            with fresh.Pool(args.processes, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
                samples.extend(pool.imap(of_rung, args.rungs))
    for sample in samples:
        print(
            f"rung {sample.rung}: {sample.schedules:,} schedules, {sum(sample.fired.values()):,} faults at "
            f"{sample.num_points} points, {sample.failed_steps:,} failed steps, {len(sample.fell)} failed"
        )
        print(*sample.fell, sep="\n", end="\n" * bool(sample.fell))
    if args.json:
        settings = {**settings_of(args), "model": NAME}
        write_record(make_record("faults", device, measure_bandwidth(device), settings, samples), args.json)


def run_numbered(rung: str, seed: int, number: int, device: str) -> Outcome:
    """What became of a rung's schedule with this number; drawn from it alone, so that it can be run again."""
    options = LADDER[rung].options
    dice = random.Random(f"{seed} {rung} {number}")
    return run_schedule(options, draw_schedule(dice, points_called(options)), device)


def faults_of(rung: str, num_schedules: int, seed: int, device: torch.device) -> RungFaults:
    """What became of this many schedules of a rung."""
    started = time.process_time()
    fired: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    failed_steps = preemptions = gave_up = 0
    fell = []
    for number in tqdm(range(num_schedules), f"rung {rung}", leave=False, disable=None):
        try:
            outcome = run_numbered(rung, seed, number, str(device))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not error.args:  # it is yours, and not a planted one
                raise
            fell.append(f"--rungs {rung} --seed {seed} --only {number}: {error!r}")
            continue
        fired.update(outcome.fired)
        ended.update(outcome.ended)
        failed_steps += outcome.failed_steps
        preemptions += outcome.preemptions
        gave_up += outcome.said_it_cannot_go_on
    return RungFaults(
        rung,
        len(points_called(LADDER[rung].options)),
        num_schedules,
        dict(fired.most_common()),
        failed_steps,
        preemptions,
        dict(ended.most_common()),
        gave_up,
        tuple(fell),
        time.process_time() - started,
    )
