"""Lesson 04: what a few runs can say about a gain of a percent or two."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from labkit.results import speedup_interval


def relabelled(before: Sequence[float], after: Sequence[float]) -> tuple[int, int]:
    """An exact permutation test (Fisher, 1935): in how many of all ways to call some of these runs `after`
    the means lie at least as far apart, in either direction, as with the true labels; and how many ways there
    are."""
    runs = [*before, *after]

    def apart(picked: Sequence[int]) -> float:
        others = [run for i, run in enumerate(runs) if i not in picked]
        return abs(np.mean([runs[i] for i in picked]) - np.mean(others))

    ways = list(combinations(range(len(runs)), len(after)))
    true_labels = apart(range(len(before), len(runs)))
    return sum(bool(apart(way) >= true_labels * (1 - 1e-12)) for way in ways), len(ways)


def spread(*sides: Sequence[float]) -> float:
    """How far runs of one kind scatter: the standard deviation over the mean, pooled over the sides."""
    variances = [np.var(runs, ddof=1) / np.mean(runs) ** 2 for runs in sides]
    return float(np.sqrt(np.mean(variances)))


def detected(runs: int, spread: float, gain: float, experiments: int = 50, seed: int = 0) -> float:
    """The share of simulated comparisons that come out "faster" or "slower".

    Each has `runs` runs per side that scatter by `spread`, and a true speed-up of 1 + gain.
    """
    generator = np.random.default_rng(seed)
    found = 0
    for _ in range(experiments):
        before, after = generator.normal(1, spread, (2, runs)) / [[1], [1 + gain]]
        low, high = speedup_interval(before.tolist(), after.tolist())
        found += low > 1 or high < 1
    return found / experiments
