"""fuzz: reads checkpoints and records with random damage; each must be read, or refused with a clear error.

They are read in a process whose time for a case and whose memory are bounded. A case that fails is printed
with its number: --only runs that one again, without bounds, and shows where it failed.
"""

import argparse
import time
from collections import Counter
from itertools import count

from tqdm import tqdm

from labkit.bench.commands.arguments import add_device_arguments, natural, positive, settings_of
from labkit.bench.commands.interruption import until_interrupted
from labkit.bench.confined import Confined, FellError
from labkit.bench.fuzz import TARGETS, Case, Judged, describe, judge, name_of
from labkit.bench.limit import measure_bandwidth
from labkit.bench.record import make_record, write_record
from labkit.engine.device import pick_device
from labkit.paths import require_project
from labkit.results.fuzz import FuzzedTarget

LIMIT_SECONDS, LIMIT_MEMORY = 20, 2 * 2**30  # of a case; of all of them
MEMORY_EVERY = 1000  # cases


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_device_arguments(parser)
    add = parser.add_argument
    add(
        "--seconds",
        type=positive,
        default=60,
        metavar="N",
        help="all cases together get this many seconds (default: %(default)s)",
    )
    add(
        "--cases",
        type=positive,
        metavar="N",
        help="at most this many cases run (default: as many as there is time for)",
    )
    add(
        "--seed",
        type=natural,
        default=0,
        metavar="N",
        help="all cases are drawn with this seed (default: %(default)s)",
    )
    add("--only", type=natural, metavar="N", help="the case with this number runs alone (default: all)")


def run(args: argparse.Namespace) -> None:
    """Run the cases, print what became of them, and write a record."""
    require_project()  # whose records are damaged
    if args.only is not None:
        case = Case(args.seed, args.only)
        print(describe(case))
        print(judge(case))
        return
    device = pick_device(args.device)
    judged, fell, memory = run_cases(args)
    samples = [sample_of(target, judged, fell) for target in TARGETS]
    for sample in samples:
        print(
            f"{sample.target}: {sample.num_cases:,} cases, {sample.read:,} read, {sample.num_refused:,} "
            f"refused, {len(sample.fell)} failed; the slowest took {sample.slowest:.2f} s"
        )
        print(*sample.fell, sep="\n", end="\n" * bool(sample.fell))
    if args.json:
        limits = {"limit_seconds": LIMIT_SECONDS, "limit_memory": LIMIT_MEMORY, "memory": memory}
        settings = {**settings_of(args), **limits, "model": "none"}
        write_record(make_record("fuzz", device, measure_bandwidth(device), settings, samples), args.json)


def run_cases(args: argparse.Namespace) -> tuple[list[Judged], list[tuple[Case, str]], list[int]]:
    """What became of the cases, those that fell, and the bytes of memory after each thousand."""
    judged: list[Judged] = []
    fell: list[tuple[Case, str]] = []
    memory: list[int] = []
    numbers = range(args.cases) if args.cases else count()
    with Confined(judge, LIMIT_SECONDS, LIMIT_MEMORY) as confined, until_interrupted(args, judged):
        ends = time.monotonic() + args.seconds
        for number in tqdm(numbers, "cases", leave=False, disable=None):
            if time.monotonic() > ends:
                break
            case = Case(args.seed, number)
            try:
                judged.append(confined(case))
            except FellError as error:
                said = f"--seed {args.seed} --only {number}: {describe(case)}: {error}"
                fell.append((case, said))
            if number % MEMORY_EVERY == MEMORY_EVERY - 1 and judged:
                memory.append(judged[-1].memory)
    return judged, fell, memory


def sample_of(target: str, judged: list[Judged], fell: list[tuple[Case, str]]) -> FuzzedTarget:
    """The cases of one target, counted."""
    its = [one for one in judged if one.target == target]
    return FuzzedTarget(
        target,
        sum(one.error is None for one in its),
        dict(Counter(one.error for one in its if one.error is not None).most_common()),
        tuple(said for case, said in fell if name_of(case) == target),
        sum(one.cpu_seconds for one in its),
        max((one.cpu_seconds for one in its), default=0.0),
    )
