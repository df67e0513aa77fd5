"""Times of two sides whose runs were made in turn, and whether the difference can be believed.

Runs go A B B A, A B B A, …: whatever drifts evenly over a round falls on both sides alike. Each run is
divided by the mean of its round, which takes the slower drift out, and the interval of the ratio of medians
is bootstrapped from those (Efron and Tibshirani, 1993).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from labkit.errors import RecordError

# Of comparisons of a thing with itself, one or two in a hundred then get a verdict; the tests simulate it.
# That holds from four rounds on: with two it is about one in twenty, and with one, one in three.
CONFIDENCE = 0.99
MIN_ROUNDS = 2  # for a verdict
TOO_FEW_ROUNDS = f"too few rounds for a verdict ({MIN_ROUNDS} needed)"
RESAMPLES = 10_000


class Interval(NamedTuple):
    """The ends of a confidence interval of a ratio."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"[{beside_one(self.low)}, {beside_one(self.high)}]"


def beside_one(ratio: float) -> str:
    """A ratio to three decimals, or to as many as show on which side of 1 it lies (at most six)."""
    texts = (f"{ratio:.{decimals}f}" for decimals in range(3, 7))
    return next((text for text in texts if float(text) != 1), f"{ratio:.3f}")


def level(before: Sequence[float], after: Sequence[float]) -> np.ndarray:
    """Both sides' times [2, runs], each divided by the mean of its round of A B B A.

    Raises RecordError unless both have the same number of runs, two per round, all above 0.
    """
    if len(before) != len(after) or not before or len(before) % 2:
        raise RecordError(f"{len(before)} and {len(after)} runs do not make rounds of A B B A")
    sides = np.array([before, after], dtype=float)
    if not (sides > 0).all():
        raise RecordError("a run that took no time, or less, cannot be compared")
    by_round = np.log(sides).reshape(2, -1, 2)
    return np.exp(by_round - by_round.mean(axis=(0, 2), keepdims=True)).reshape(2, -1)


def speedup(before: Sequence[float], after: Sequence[float]) -> float:
    """Ratio of the medians of two sides' runs, made in turn and levelled: above 1 if `after` is faster.

    Raises RecordError for runs that `level` refuses.
    """
    medians = np.median(level(before, after), axis=1)
    return float(medians[0] / medians[1])


@lru_cache(maxsize=1)  # those who compare often do so with as many runs
def resampled(runs: int) -> np.ndarray:
    """Which runs each resample of two sides has, [2, RESAMPLES, runs]."""
    return np.random.default_rng(0).integers(0, runs, (2, RESAMPLES, runs))


def speedup_interval(before: Sequence[float], after: Sequence[float]) -> Interval:
    """The bootstrap interval of `speedup` at the confidence `CONFIDENCE`, from resampled runs."""
    levelled, runs = level(before, after), len(before)
    middle = slice(runs // 2 - 1, runs // 2 + 1)  # of an even number; `np.median` takes five times as long
    medians = [
        np.sort(side[pick], axis=1)[:, middle].mean(axis=1)
        for side, pick in zip(levelled, resampled(runs), strict=True)
    ]
    tail = 50 * (1 - CONFIDENCE)
    return Interval(*np.percentile(medians[0] / medians[1], [tail, 100 - tail]).tolist())


@dataclass(frozen=True)
class Comparison:
    """Times of two sides' runs, made in turn.

    before, after: the sides' names. Samples are seconds, in order; paths say how often each append path ran.
    """

    before: str
    after: str
    before_samples: tuple[float, ...]
    after_samples: tuple[float, ...]
    before_paths: dict[str, int]
    after_paths: dict[str, int]
    path: str | None = None  # the path that `after` is about

    @property
    def speedup(self) -> float:
        """How many times faster `after` is: the ratio of the medians, levelled by round."""
        return speedup(self.before_samples, self.after_samples)

    @property
    def interval(self) -> Interval:
        """The bootstrap interval of `speedup`, at the confidence `CONFIDENCE`."""
        return speedup_interval(self.before_samples, self.after_samples)

    @property
    def verdict(self) -> str:
        """ "faster" or "slower" if the interval leaves out 1, else "cannot tell".

        `TOO_FEW_ROUNDS` where there are too few to trust the interval.
        """
        if len(self.before_samples) < 2 * MIN_ROUNDS:
            return TOO_FEW_ROUNDS
        low, high = self.interval
        return "faster" if low > 1 else "slower" if high < 1 else "cannot tell"

    @property
    def warning(self) -> str | None:
        """A warning if `path` never ran in `after`, for then the comparison does not test it; else None."""
        if self.path is None or self.after_paths.get(self.path):
            return None
        return f"WARNING: path {self.path!r} never ran in {self.after!r}: this says nothing about it"

    def __str__(self) -> str:
        lines = [f"{self.before} -> {self.after}: x{self.speedup:.3f} {self.interval}, {self.verdict}"]
        for name, samples, paths in (
            (self.before, self.before_samples, self.before_paths),
            (self.after, self.after_samples, self.after_paths),
        ):
            took = f", paths: {paths_in_words(paths)}" if paths else ""
            lines.append(f"  {name}: median {np.median(samples):.4g} s{took}")
        return "\n".join([*lines, *filter(None, [self.warning])])


def paths_in_words(paths: Mapping[str, int]) -> str:
    """How often each append path ran: "1,536 in_place, 64 boundary"."""
    return ", ".join(f"{count:,} {name}" for name, count in paths.items())


def amdahl(share: float, ratio: float) -> float:
    """How many times faster the whole gets if a share of it gets `ratio` times faster (Amdahl, 1967)."""
    return 1 / (1 - share + share / ratio)


@dataclass(frozen=True)
class ComparedWorkload:
    """What `python -m labkit.bench compare` records: decode times, or those of whole runs (`--whole-runs`).

    limit_seconds: the least that decoding these requests can take.
    """

    comparison: Comparison
    limit_seconds: float


# --- requests without drafts and with them -------------------------------------------------------------


@dataclass(frozen=True)
class DraftedTask:
    """One request alone, whose tokens are the same with drafts and without.

    task: "summarize", "edit", "code", or "free", whose answer the prompt does not foretell. steps: that its
    tokens took with drafts. drafted: tokens that were verified in them; accepted: those that were right.
    comparison: seconds of decoding, without drafts and with them.
    """

    task: str
    name: str
    prompt_tokens: int
    new_tokens: int
    steps: int
    drafted: int
    accepted: int
    comparison: Comparison

    @property
    def tokens_a_step(self) -> float:
        """New tokens, without the first, by the steps they took."""
        return (self.new_tokens - 1) / self.steps


@dataclass(frozen=True)
class DialedRun:
    """Requests of which each draft is right with a chance that was set.

    steps, drafted, accepted: of all runs with drafts, for luck differs from run to run. comparison: seconds
    of decoding, without drafts and with them.
    """

    requests: int
    chance: float
    new_tokens: int
    steps: int
    drafted: int
    accepted: int
    comparison: Comparison

    @property
    def tokens_a_step(self) -> float:
        """New tokens of each request, without the first, by the steps until all had theirs."""
        return (self.new_tokens - 1) * len(self.comparison.after_samples) / self.steps


def together(samples: Sequence[DraftedTask]) -> tuple[float, Interval]:
    """How many times faster all these requests are decoded with drafts, one after another: the ratio of their
    times' sums, run by run, and its interval."""
    compared = [sample.comparison for sample in samples]
    before = np.sum([each.before_samples for each in compared], axis=0).tolist()
    after = np.sum([each.after_samples for each in compared], axis=0).tolist()
    return float(np.median(before) / np.median(after)), speedup_interval(before, after)
