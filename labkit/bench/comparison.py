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
    measures: Sequence[Callable[[], T]],
    rounds: int,
    progress: Callable[[], object] = lambda: None,
    interrupted: Callable[[], object] | None = None,
) -> list[list[T]]:
    """Call each measure twice per round, there and back again: A B B A. For each its results, in order.

    progress: called after each call. interrupted: called if Ctrl-C ends the last round early, and then the
    results are those of the whole rounds; without it, or before the end of the first round, it is raised.
    """
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

    def run_with(options: EngineOptions) -> Run:
        return workload.run(workload.make_engine(options))

    for options in (before, after) * warmup_runs:
        run_with(options)
    measures = [lambda: run_with(before), lambda: run_with(after)]
    before_runs, after_runs = in_turn(measures, rounds, progress, interrupted)
    return compared_runs(before_runs, after_runs, names, path, measure)
