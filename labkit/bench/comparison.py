"""Two engines on one workload, run in turn."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from labkit.bench.workload import Workload
from labkit.options import EngineOptions
from labkit.results.comparison import Comparison
from labkit.results.runs import Run, compared_runs

ROUNDS = 5

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
    interrupted: called if Ctrl-C ends the last round early, and then the
    results are those of the whole rounds; without it, or before the end of the first round, it is raised.
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
    warmup_runs: int = 1,
    measure: Callable[[Run], float] = lambda run: run.decode_seconds,
    progress: Callable[[], object] = lambda: None,
    interrupted: Callable[[], object] | None = None,
) -> Comparison:
    """Compare two engines on one workload, each run with a fresh engine.

    path: what `after` is about; the comparison warns if it never ran. measure: the time of a
    run to compare, in seconds; decoding by default. progress: called after each of the 4 * rounds runs.
    interrupted: as `in_turn` has it.
    """
    measures = [partial(run_fresh, workload, options) for options in (before, after)]
    before_runs, after_runs = in_turn(measures, rounds, progress, interrupted, warmup_runs)
    return compared_runs(before_runs, after_runs, names, path, measure)
