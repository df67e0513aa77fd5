"""compare: runs two rungs, or any two sets of options, in turn on one workload, and says which is faster.

--before and --after take a rung and changes to its options: 00, or 00,attention=plain.
--self-test N compares --before with itself N times: all but about one in a hundred must be "cannot tell".
One round is too few for a verdict.
"""

import argparse
from collections import Counter
from functools import partial
from operator import attrgetter
from statistics import median

from tqdm import tqdm

from labkit.bench.commands.arguments import (
    add_common_arguments,
    add_rounds_argument,
    add_workload_arguments,
    positive,
    require_decoding,
    rung_options,
    settings_of,
    workload_of,
)
from labkit.bench.commands.interruption import mark_interrupted, until_interrupted
from labkit.bench.comparison import ROUNDS, compare
from labkit.bench.limit import measure_bandwidth
from labkit.bench.record import make_record, write_record
from labkit.engine.step.attention import AttendAndWrite
from labkit.ladder import LADDER
from labkit.results.comparison import ComparedWorkload, Comparison
from labkit.watch.paths import READY_PATHS
from labkit.watch.positions import WRITES

PATHS = (*READY_PATHS, *WRITES, AttendAndWrite.path)  # by the names of the engine's counter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    *_, below, last = next(iter(LADDER)), *LADDER
    add_common_arguments(parser)
    add_workload_arguments(parser)
    add_rounds_argument(parser, ROUNDS)
    add = parser.add_argument
    side = {
        "metavar": "RUNG[,OPTION=VALUE,...]",
        "help": "this side has this rung's options (default: %(default)s)",
    }
    add("--before", default=below, **side)
    add("--after", default=last, **side)
    add(
        "--path",
        choices=PATHS,
        help="--after is about this append path; a warning says if it never ran (default: none)",
    )
    add(
        "--whole-runs",
        action="store_true",
        help="whole runs are compared, prompts and waiting included (default: decoding alone)",
    )
    add(
        "--self-test",
        type=positive,
        metavar="N",
        help="--before is compared with itself N times (default: with --after, once)",
    )


def run(args: argparse.Namespace) -> None:
    """Compare two sets of options on one workload, print the verdict and the limit, and write a record."""
    before, after = rung_options(args.before), rung_options(args.before if args.self_test else args.after)
    require_decoding(args)
    workload = workload_of(args)
    names = ("A", "A again") if args.self_test else (args.before, args.after)
    repeats = args.self_test or 1
    comparisons: list[Comparison] = []
    num_runs = repeats * args.rounds * 4
    with tqdm(total=num_runs, unit=" runs") as bar, until_interrupted(args, comparisons):
        while len(comparisons) < repeats and "interrupted" not in args:
            made = compare(
                workload,
                before,
                after,
                names=names,
                path=args.path,
                rounds=args.rounds,
                measure=attrgetter("seconds" if args.whole_runs else "decode_seconds"),
                progress=bar.update,
                interrupted=partial(mark_interrupted, args),
            )
            comparisons.append(made)
    bandwidth = measure_bandwidth(workload.model.device)
    if "interrupted" in args:
        limit = workload.requested_limit(bandwidth.copy)  # which takes no run
    else:
        limit = workload.limit(workload.run(workload.make_engine(after)), bandwidth.copy)
    for comparison in comparisons:
        print(comparison)
    reached = 100 * limit.seconds / median(comparisons[-1].after_samples)
    print(f"Limit of decode: {limit.seconds:.4g} s at {bandwidth}; reached {reached:.1f} %")
    if args.self_test:
        report_self_test(comparisons)
    if args.json:
        samples = [ComparedWorkload(comparison, limit.seconds) for comparison in comparisons]
        record = make_record("comparison", workload.model.device, bandwidth, settings_of(args), samples)
        write_record(record, args.json)


def report_self_test(comparisons: list[Comparison]) -> None:
    """Print how often each verdict was given in comparisons of a side with itself."""
    verdicts = Counter(comparison.verdict for comparison in comparisons)
    counts = ", ".join(f"{count} {verdict!r}" for verdict, count in verdicts.most_common())
    print(f"A/A self-test, {len(comparisons)} comparisons: {counts}")
