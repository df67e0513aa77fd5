"""Engines on one workload, run in turn; and the commands that say which is faster, of two or of all rungs."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from operator import attrgetter
from statistics import median
from typing import TypeVar

from tqdm import tqdm

from labkit.bench.flags import (
    ByDevice,
    Kind,
    RecordFlags,
    WorkloadFlags,
    flag,
    replaced_default,
    rounds_flag,
    rungs_flag,
    workload_of,
)
from labkit.bench.limit import measure_bandwidth
from labkit.bench.loads import ALIKE
from labkit.bench.workload import Workload
from labkit.engine.device import cache_dtype
from labkit.engine.step.attention import AttendAndWrite
from labkit.errors import OptionError
from labkit.ladder import LADDER
from labkit.options import EngineOptions
from labkit.results.comparison import ComparedWorkload, Comparison
from labkit.results.runs import Run, RungRun, compared_runs
from labkit.watch.counters import READY_PATHS, WRITES

ROUNDS = 5
PATHS = (*READY_PATHS, *WRITES, AttendAndWrite.path)  # by the names of the engine's counter
SIDE = Kind(str, "RUNG[,OPTION=VALUE,...]")
ON_A_CPU = (
    "On a CPU the model's arithmetic is most of a run, and few rungs change that, so expect *cannot tell* of "
    "many: what they take off the host's time shows in `python -m labkit.bench host-time`."
)

T = TypeVar("T")


def in_turn(
    measures: Sequence[Callable[[], T]],
    rounds: int,
    progress: Callable[[], object] = lambda: None,
    interrupted: Callable[[], object] | None = None,
    warm_up: int = 0,
) -> list[list[T]]:
    """Call each measure twice per round, there and back again: A B B A. For each its results, in order.

    warm_up: so often each is called before, which is not measured. progress: called after each call that is.
    interrupted: called if Ctrl-C ends a round early, and then the results are those of the whole rounds;
    without it, or before the end of the first round, it is raised.
    """
    for measure in [*measures] * warm_up:
        measure()
    results: list[list[T]] = [[] for _ in measures]
    there = range(len(measures))
    for _ in range(rounds):
        made: list[list[T]] = [[] for _ in measures]
        try:
            for i in (*there, *reversed(there)):
                made[i].append(measures[i]())
                progress()
        except KeyboardInterrupt:
            if interrupted is None or not results[0]:
                raise
            interrupted()
            break
        for whole_rounds, new in zip(results, made, strict=True):
            whole_rounds += new
    return results


def run_fresh(workload: Workload, options: EngineOptions) -> Run:
    return workload.run(workload.make_engine(options))


def compare(
    workload: Workload,
    before: EngineOptions,
    after: EngineOptions,
    *,
    names: tuple[str, str] = ("before", "after"),
    path: str | None = None,
    rounds: int = ROUNDS,
) -> Comparison:
    """Compare two engines' decode times on one workload, each run with a fresh engine.

    path: what `after` is about; the comparison warns if it never ran.
    """
    measures = [partial(run_fresh, workload, options) for options in (before, after)]
    return compared_runs(*in_turn(measures, rounds, warm_up=1), names, path)


@dataclass
class Compare(WorkloadFlags):
    """Run two rungs, or any two sets of options, in turn on one workload, and say which is faster.

    --before and --after take a rung and changes to its options: 00, or 00,attention=plain.
    --self-test N compares --before with itself N times: all but about one in a hundred must be "cannot tell".
    One round is too few for a verdict.
    """

    kind = "comparison"

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
        None, "--before is compared with itself N times (default: with --after, once)"
    )

    def run(self) -> None:
        before, after = rung_options(self.before), rung_options(self.before if self.self_test else self.after)
        names = ("A", "A again") if self.self_test else (self.before, self.after)
        workload = workload_of(self)
        measures = [partial(run_fresh, workload, options) for options in (before, after)]
        measure = attrgetter("seconds" if self.whole_runs else "decode_seconds")
        comparisons: list[Comparison] = []
        repeats = self.self_test or 1
        with tqdm(total=4 * self.rounds * repeats, unit=" runs") as bar, self.until_interrupted(comparisons):
            while len(comparisons) < repeats and not self.interrupted:
                sides = in_turn(measures, self.rounds, bar.update, self.mark_interrupted, warm_up=1)
                comparisons.append(compared_runs(*sides, names, self.path, measure))
        device = workload.model.device
        bandwidth, kept = measure_bandwidth(device), cache_dtype(workload.model.network.dtype, after, device)
        limit = workload.limit(bandwidth.copy, kept, sides[1][-1])
        reached = 100 * limit.seconds / median(comparisons[-1].after_samples)
        print(*comparisons, sep="\n")
        print(f"Limit of decode: {limit.seconds:.4g} s at {bandwidth}; reached {reached:.1f} %")
        if self.self_test:
            verdicts = Counter(comparison.verdict for comparison in comparisons)
            counts = ", ".join(f"{count} {verdict!r}" for verdict, count in verdicts.most_common())
            print(f"A/A self-test, {len(comparisons)} comparisons: {counts}")
        self.record_if_asked([ComparedWorkload(each, limit.seconds) for each in comparisons], bandwidth)


def rung_options(text: str) -> EngineOptions:
    """ "00", or "00,attention=plain": a rung, and options to change in it. Raises OptionError."""
    number, *changes = text.split(",")
    known = sorted(field.name for field in fields(EngineOptions))
    options = LADDER[number].options
    for change in changes:
        name, _, value = change.partition("=")
        if name not in known:
            raise OptionError(f"{name!r} is not an option; there are {', '.join(known)}")
        options = replace(options, **{name: value})
    return options


@dataclass
class RunLadder(RecordFlags, WorkloadFlags):
    """Run all rungs on one workload in turn, compare each with the one below, and write a record.

    A round runs every rung twice: 00 01 … 01 00.
    """

    kind = "ladder"

    load: str = replaced_default(WorkloadFlags, "load", ByDevice(ALIKE, "assistant"))
    num_requests: int = replaced_default(WorkloadFlags, "num_requests", ByDevice(16, 32))
    max_new_tokens: int = replaced_default(WorkloadFlags, "max_new_tokens", ByDevice(64, 32))
    max_batch_size: int = replaced_default(WorkloadFlags, "max_batch_size", ByDevice(8, 16))
    rungs: tuple[str, ...] = rungs_flag()
    rounds: int = rounds_flag(3)

    def run(self) -> None:
        workload = workload_of(self)
        if workload.model.device.type == "cpu":
            print(ON_A_CPU)
        bandwidth = measure_bandwidth(workload.model.device)
        measures = [partial(run_fresh, workload, LADDER[rung].options) for rung in self.rungs]
        with tqdm(total=2 * self.rounds * len(measures), unit=" runs") as bar:
            made = in_turn(measures, self.rounds, bar.update, self.mark_interrupted, warm_up=1)
        print(f"{workload.model}, {self.num_requests} requests, batches of {self.max_batch_size}")
        samples = [
            RungRun(**vars(run), rung=rung, limit_seconds=workload.limit(bandwidth.copy, run=run).seconds)
            for rung, runs in zip(self.rungs, made, strict=True)
            for run in runs
        ]
        record = self.record(samples, bandwidth)
        print(record.table(whole_runs=self.load != ALIKE).to_string())
        print(f"Limit at {bandwidth}")
        self.write(record)
