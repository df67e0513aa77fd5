"""Lesson 03: which way a run's writes went, and how often Triton would compile for their slots."""

from labkit.watch import Positions


def steps_by_path(run: Positions, batch_size: int) -> dict[str, int]:
    """How many decode steps there were, how many took the full-batch path, how many of those had the whole
    batch, and how many took the generic path."""
    full = [step for step in run.steps if step.path == "full_batch"]
    return {
        "decode steps": len(run.steps),
        "full_batch": len(full),
        "of them with the whole batch": sum(len(step.slots) == batch_size for step in full),
        "generic": sum(step.path == "generic" for step in run.steps),
    }


def compiled_for(argument: int) -> str:
    """What Triton compiles a kernel for when it gets this whole number in an argument that
    `do_not_specialize` does not name."""
    if argument == 1:
        return "1"
    return "a multiple of 16" if argument % 16 == 0 else "any number"
