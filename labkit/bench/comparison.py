"""Two engines on one workload, run in turn."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from labkit.bench.workload import Workload
from labkit.options import EngineOptions
from labkit.results.comparison import Comparison
from labkit.results.runs import Run, compared_runs

ROUNDS = 5

T = TypeVar("T")


def in_turn(
    measures: Sequence[Callable[[], T]], rounds: int, progress: Callable[[], object] = lambda: None
) -> list[list[T]]:
    """Call each measure twice per round, there and back again: A B B A. For each its results, in order.

    progress: called after each call.
    """
    results: list[list[T]] = [[] for _ in measures]
    for _ in range(rounds):
        there = range(len(measures))
        for i in (*there, *reversed(there)):
            results[i].append(measures[i]())
            progress()
    return results


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
) -> Comparison:
    """Compare two engines on one workload, each run with a fresh engine.

    path: what `after` is about; the comparison warns if it never ran. measure: the time of a
    run to compare, in seconds; decoding by default. progress: called after each of the 4 * rounds runs.
    """

    def run_with(options: EngineOptions) -> Run:
        return workload.run(workload.make_engine(options))

    for options in (before, after) * warmup_runs:
        run_with(options)
    measures = [lambda: run_with(before), lambda: run_with(after)]
    before_runs, after_runs = in_turn(measures, rounds, progress)
    return compared_runs(before_runs, after_runs, names, path, measure)
