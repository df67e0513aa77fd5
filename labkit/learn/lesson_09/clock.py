"""Lesson 09: how long a step takes on a GPU, of engines in turn."""

from collections.abc import Mapping, Sequence
from statistics import median

from labkit.bench import in_turn, time_decode_steps
from labkit.engine import InferenceEngine
from labkit.results import Comparison
from labkit.watch import steady_decode

NUM_STEPS = 24  # of a run


def compare_steps(
    engines: Mapping[str, InferenceEngine], prompts: Sequence[Sequence[int]], rounds: int = 5
) -> dict[str, Comparison]:
    """How much faster than the first engine's each other engine's decode step is, by name; the runs were made
    in turn."""

    def run(engine: InferenceEngine) -> float:
        with steady_decode(engine, prompts):
            return median(time_decode_steps(engine, NUM_STEPS))

    runs = in_turn([lambda e=e: run(e) for e in engines.values()], rounds)
    (before, first), *others = zip(engines, map(tuple, runs), strict=True)
    return {name: Comparison(before, name, first, after, {}, {}) for name, after in others}
