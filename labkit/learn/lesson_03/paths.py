"""Lesson 03: the paths of steps, and what one of them saves."""

from statistics import median

from labkit.results import Comparison
from labkit.watch import Positions

# --- which way a run's writes went, and how often Triton would compile for their slots -----------------


def steps_by_path(run: Positions) -> dict[str, int]:
    """How many decode steps took the full-batch path, and how many the generic one."""
    return {path: sum(step.path == path for step in run.steps) for path in ("full_batch", "generic")}


def compiled_for(argument: int) -> str:
    """What Triton compiles a kernel for when it gets this whole number in an argument that
    `do_not_specialize` does not name."""
    if argument == 1:
        return "1"
    return "a multiple of 16" if argument % 16 == 0 else "any number"


# --- what a change saves, in time and not as a ratio ---------------------------------------------------


def saved_us(comparison: Comparison, num_steps: int = 1) -> float:
    """Microseconds by which a step got shorter: the difference of the median runs, of `num_steps` steps
    each."""
    seconds = median(comparison.before_samples) - median(comparison.after_samples)
    return 1e6 * seconds / num_steps
