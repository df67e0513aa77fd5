"""Lesson 13: the exercises."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

from labkit.learn.exercise import Case, Exercise

# --- whose row is it ----------------------------------------------------------------------------------------


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


def row_of(starts: Sequence[int], context_lens: Sequence[int], row: int) -> dict[str, object]:
    """Arguments of `whose_row`."""
    return {"starts": list(starts), "context_lens": list(context_lens), "row": row}


WHOSE_ROW = Exercise(
    "whose_row",
    (
        Case(row_of([0, 4], [0], 2), (0, 2), "One prompt, from its beginning: the row is the position."),
        Case(row_of([0, 4], [7], 2), (0, 9), "Its first 7 tokens were computed before: positions go on."),
        Case(row_of([0, 4, 6], [0, 0], 5), (1, 1), "Each prompt's positions count from its own first row."),
        Case(
            row_of([0, 4, 6], [0, 0], 4), (1, 0), "Row starts[1] is the first of prompt 1, not the last of 0."
        ),
        Case(row_of([0, 4, 6], [3, 9], 3), (0, 6), "Row starts[1] - 1 is the last of prompt 0."),
        Case(
            row_of([0, 0, 3], [5, 0], 0), (1, 0), "Prompt 0 has no row in this chunk: starts[0] is starts[1]."
        ),
        Case(row_of([0, 2, 2, 2, 5], [1, 8, 9, 4], 2), (3, 4), "Two prompts without rows lie in between."),
        Case(row_of([0, 4, 6], [0, 0], 6), None, "Rows from the last start on are pads: nothing is stored."),
        Case(row_of([0, 0], [3], 0), None, "A chunk of pads alone."),
    ),
    whose_row,
    draw_row,
    "Prompt p has the rows starts[p] to starts[p + 1] - 1, maybe none. The first of them is its token "
    "context_lens[p]. Rows behind all prompts are nobody's: None.",
)

# --- in which chunk a prompt ends ---------------------------------------------------------------------------


def last_chunks(lengths: Sequence[int], max_tokens: int) -> list[int]:
    """The number of the chunk, from 1, that computes each prompt's last token."""
    numbers, total = [], 0
    for length in lengths:
        total += length
        numbers.append(-(-total // max_tokens))
    return numbers


def draw_lengths(rng: Random) -> dict[str, object]:
    """Draw arguments of `last_chunks`."""
    lengths = [rng.choice([1, 2, 3, 4, 8, 9, 30]) for _ in range(rng.randint(0, 6))]
    return {"lengths": lengths, "max_tokens": rng.choice([1, 3, 4, 8, 64])}


def of_lengths(lengths: Sequence[int], max_tokens: int) -> dict[str, object]:
    """Arguments of `last_chunks`."""
    return {"lengths": list(lengths), "max_tokens": max_tokens}


LAST_CHUNKS = Exercise(
    "last_chunks",
    (
        Case(of_lengths([5], 8), [1], "It fits into the first chunk."),
        Case(of_lengths([20], 8), [3], "8, 8 and 4 tokens: the third chunk has its last one."),
        Case(of_lengths([16], 8), [2], "Two full chunks, and nothing is left for a third."),
        Case(of_lengths([5, 3], 8), [1, 1], "Both fit into one chunk, behind each other."),
        Case(of_lengths([5, 4], 8), [1, 2], "The second prompt has 3 tokens in chunk 1, and 1 in chunk 2."),
        Case(
            of_lengths([12, 2], 8), [2, 2], "Chunk 2 has 4 tokens of the first prompt, and room for 4 more."
        ),
        Case(
            of_lengths([1, 20, 1], 8),
            [1, 3, 3],
            "First come, first served: the short one waits for the long.",
        ),
        Case(of_lengths([3, 3, 3], 1), [3, 6, 9], "A chunk of one token each time."),
        Case(of_lengths([], 8), [], "No prompt."),
    ),
    last_chunks,
    draw_lengths,
    "Chunks are filled without a gap, in the order of the prompts, so count tokens up to a prompt's last.",
)
