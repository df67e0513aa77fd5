"""Lesson 03: what a change saves, in time and not as a ratio."""

from statistics import median

from labkit.results import Comparison


def saved_us(comparison: Comparison, num_steps: int = 1) -> float:
    """Microseconds by which a step got shorter: the difference of the median runs, of `num_steps` steps
    each."""
    seconds = median(comparison.before_samples) - median(comparison.after_samples)
    return 1e6 * seconds / num_steps
