"""Lesson 13: the exercise."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

from labkit.learn.exercise import Exercise


def whose_row(starts: Sequence[int], context_lens: Sequence[int], row: int) -> tuple[int, int] | None:
    """The prompt of a chunk's row and the row's position in it; None for a row that pads."""
    for prompt, (first, end) in enumerate(pairwise(starts)):
        if first <= row < end:
            return prompt, context_lens[prompt] + row - first
    return None


def draw_row(rng: Random) -> dict[str, object]:
    """Draw arguments of `whose_row`: up to five prompts, some without a row."""
    starts = [0]
    for _ in range(rng.randint(1, 5)):
        starts.append(starts[-1] + rng.choice([0, 1, 2, 5]))
    context_lens = [rng.choice([0, 1, 3, 40]) for _ in starts[1:]]
    return {"starts": starts, "context_lens": context_lens, "row": rng.randint(0, starts[-1] + 1)}


WHOSE_ROW = Exercise(
    solution=whose_row,
    draw=draw_row,
    contract="Prompt p has the rows starts[p] to starts[p + 1] - 1, possibly none. Its first row is its "
    "token context_lens[p]. A row after all prompts belongs to none: None.",
)
