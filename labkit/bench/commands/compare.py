"""compare: runs two rungs, or any two sets of options, in turn on one workload, and says which is faster.

--before and --after take a rung and changes to its options: 00, or 00,attention=plain.
--self-test N compares --before with itself N times: all but about one in a hundred must be "cannot tell".
One round is too few for a verdict.
"""

from collections import Counter
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from statistics import median

from tqdm import tqdm

from labkit.bench.commands.arguments import (
    COUNT,
    WorkloadFlags,
    require_decoding,
    rounds_flag,
    two_digits,
    workload_of,
)
from labkit.bench.commands.flags import Kind, flag
from labkit.bench.commands.targets import record_if_asked
from labkit.bench.comparison import ROUNDS, compare, run_fresh
from labkit.bench.limit import measure_bandwidth
from labkit.engine.device import cache_dtype
from labkit.engine.step.attention import AttendAndWrite
from labkit.errors import OptionError
from labkit.ladder import LADDER
from labkit.options import EngineOptions
from labkit.results.comparison import ComparedWorkload, Comparison
from labkit.watch.counters import READY_PATHS, WRITES

PATHS = (*READY_PATHS, *WRITES, AttendAndWrite.path)  # by the names of the engine's counter


SIDE = Kind(str, "RUNG[,OPTION=VALUE,...]")


@dataclass
class Settings(WorkloadFlags):
    rounds: int = rounds_flag(ROUNDS)
    before: str = flag(list(LADDER)[-2], "this side has this rung's options", SIDE)
    after: str = flag(list(LADDER)[-1], "this side has this rung's options", SIDE)
    path: str | None = flag(
        None,
        "--after is about this append path; a warning says if it never ran (default: none)",
        choices=PATHS,
    )
    whole_runs: bool = flag(
        False, "whole runs are compared, prompts and waiting included (default: decoding alone)"
    )
    self_test: int | None = flag(
        None, "--before is compared with itself N times (default: with --after, once)", COUNT
    )


def run(args: Settings) -> None:
    before, after = rung_options(args.before), rung_options(args.before if args.self_test else args.after)
    require_decoding(args)
    workload = workload_of(args)
    names = ("A", "A again") if args.self_test else (args.before, args.after)
    repeats = args.self_test or 1
    comparisons: list[Comparison] = []
    num_runs = repeats * args.rounds * 4
    with tqdm(total=num_runs, unit=" runs") as bar, args.until_interrupted(comparisons):
        while len(comparisons) < repeats and not args.interrupted:
            made = compare(
                workload,
                before,
                after,
                names=names,
                path=args.path,
                rounds=args.rounds,
                measure=attrgetter("seconds" if args.whole_runs else "decode_seconds"),
                progress=bar.update,
                interrupted=args.mark_interrupted,
            )
            comparisons.append(made)
    bandwidth = measure_bandwidth(workload.model.device)
    kept = cache_dtype(workload.model.network.dtype, after, workload.model.device)
    if args.interrupted:
        limit = workload.requested_limit(bandwidth.copy, kept)  # which takes no run
    else:
        limit = workload.limit(run_fresh(workload, after), bandwidth.copy, kept)
    for comparison in comparisons:
        print(comparison)
    reached = 100 * limit.seconds / median(comparisons[-1].after_samples)
    print(f"Limit of decode: {limit.seconds:.4g} s at {bandwidth}; reached {reached:.1f} %")
    if args.self_test:
        verdicts = Counter(comparison.verdict for comparison in comparisons)
        counts = ", ".join(f"{count} {verdict!r}" for verdict, count in verdicts.most_common())
        print(f"A/A self-test, {len(comparisons)} comparisons: {counts}")
    samples = [ComparedWorkload(comparison, limit.seconds) for comparison in comparisons]
    record_if_asked(args, "comparison", workload.model.device, samples, bandwidth)


def rung_options(text: str) -> EngineOptions:
    """ "00", or "00,attention=plain": a rung, and options to change in it. Raises OptionError."""
    number, *changes = text.split(",")
    known = sorted(field.name for field in fields(EngineOptions))
    options = LADDER[two_digits(number)].options
    for change in changes:
        name, _, value = change.partition("=")
        if name not in known:
            raise OptionError(f"{name!r} is not an option; there are {', '.join(known)}")
        options = replace(options, **{name: value})
    return options
