"""What drafts are worth, with them and without, in turn: task by task, and by how often they are right."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.results.comparison import Comparison, Interval, speedup_interval


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
    sums = [
        np.sum([getattr(sample.comparison, f"{side}_samples") for sample in samples], axis=0)
        for side in ("before", "after")
    ]
    before, after = (tuple(side.tolist()) for side in sums)
    return float(np.median(before) / np.median(after)), speedup_interval(before, after)
