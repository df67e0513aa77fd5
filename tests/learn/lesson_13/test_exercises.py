"""The graders of lesson 13: wrong answers are refused in the contract's words, right ones are right."""

import bisect
import itertools
import random

import numpy as np
import pytest
import torch

from labkit.learn import not_attempted
from labkit.learn.lesson_13.exercises import (
    LAST_CHUNKS,
    WHOSE_ROW,
    draw_lengths,
    draw_row,
    last_chunks,
    whose_row,
)


@pytest.mark.parametrize("exercise", [WHOSE_ROW, LAST_CHUNKS], ids=lambda e: e.name)
def test_the_solution_is_right_and_the_empty_cell_is_not_attempted(exercise):
    right = f"{exercise.name}: right, all {len(exercise.cases)} cases."
    assert exercise.grade(exercise.solution) == exercise.grade(exercise.solution) == right
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."


# --- whose row is it ---------------------------------------------------------------------------------------


def by_bisect(starts, row, side=bisect.bisect_right):
    return side(starts, row) - 1


def no_pads(starts, context_lens, row):
    found = whose_row(starts, context_lens, row)
    return found or (len(context_lens) - 1, context_lens[-1] + row - starts[-2])


def strictly_behind(starts, context_lens, row):
    for p, (first, end) in enumerate(itertools.pairwise(starts)):
        if first < row <= end:
            return p, context_lens[p] + row - first
    return None


def first_that_begins(starts, context_lens, row):
    p = starts.index(max(start for start in starts if start <= row))
    return (p, context_lens[p] + row - starts[p]) if row < starts[-1] else None


WRONG_ROWS = {
    "the row is the position": (lambda starts, context_lens, row: (0, row), "positions go on"),
    "context forgotten": (
        lambda starts, context_lens, row: (
            (by_bisect(starts, row), row - starts[by_bisect(starts, row)]) if row < starts[-1] else None
        ),
        "positions go on",
    ),
    "start forgotten": (
        lambda starts, context_lens, row: (
            (by_bisect(starts, row), context_lens[by_bisect(starts, row)] + row) if row < starts[-1] else None
        ),
        "Each prompt's positions count from its own first row",
    ),
    "from 1 on": (
        lambda starts, context_lens, row: (lambda f: f and (f[0] + 1, f[1]))(
            whose_row(starts, context_lens, row)
        ),
        "One prompt, from its beginning",
    ),
    "ends are included": (strictly_behind, "Row starts[1] is the first of prompt 1"),
    "of prompts that begin there the first": (first_that_begins, "Prompt 0 has no row in this chunk"),
    "pads are the last prompt's": (no_pads, "Rows from the last start on are pads"),
    "-1 for a pad": (
        lambda starts, context_lens, row: whose_row(starts, context_lens, row) or (-1, -1),
        "Rows from the last start on are pads",
    ),
    "no pads if there is no token": (
        lambda starts, context_lens, row: (
            (0, context_lens[0] + row) if starts[-1] == 0 else whose_row(starts, context_lens, row)
        ),
        "A chunk of pads alone",
    ),
    "the prompt alone": (
        lambda starts, context_lens, row: by_bisect(starts, row),
        "One prompt, from its beginning",
    ),
}


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_a_wrong_row_is_refused_by_what_it_breaks(name):
    attempt, words = WRONG_ROWS[name]
    verdict = WHOSE_ROW.grade(attempt)
    assert words in verdict and "right" not in verdict, verdict


def with_numpy(starts, context_lens, row):
    p = int((np.array(starts[1:]) <= row).sum())
    return None if p == len(context_lens) else np.array([p, context_lens[p] + row - starts[p]])


RIGHT_ROWS = {
    "numpy": with_numpy,
    "a list": lambda **given: (lambda found: found if found is None else list(found))(whose_row(**given)),
    "bisect": lambda starts, context_lens, row: (
        (by_bisect(starts, row), context_lens[by_bisect(starts, row)] + row - starts[by_bisect(starts, row)])
        if row < starts[-1]
        else None
    ),
}


@pytest.mark.parametrize("attempt", RIGHT_ROWS.values(), ids=RIGHT_ROWS)
def test_right_rows_pass_in_any_clothes(attempt):
    assert WHOSE_ROW.grade(attempt).startswith("whose_row: right")


# --- in which chunk a prompt ends ---------------------------------------------------------------------------


def each_alone(lengths, max_tokens):
    numbers = [-(-length // max_tokens) for length in lengths]
    return list(itertools.accumulate(numbers))


WRONG_CHUNKS = {
    "from 0 on": (
        lambda lengths, max_tokens: [n - 1 for n in last_chunks(lengths, max_tokens)],
        "the first chunk",
    ),
    "no prompt shares a chunk": (each_alone, "Both fit into one chunk"),
    "each for itself": (
        lambda lengths, max_tokens: [-(-n // max_tokens) for n in lengths],
        "The second prompt has 3 tokens in chunk 1",
    ),
    "a full chunk is one more": (
        lambda lengths, max_tokens: [n // max_tokens + 1 for n in itertools.accumulate(lengths)],
        "nothing is left for a third",
    ),
    "rounded down": (
        lambda lengths, max_tokens: [n // max_tokens for n in itertools.accumulate(lengths)],
        "It fits into the first chunk",
    ),
    "first chunks": (
        lambda lengths, max_tokens: [
            (total - n) // max_tokens + 1
            for n, total in zip(lengths, itertools.accumulate(lengths), strict=True)
        ],
        "the third chunk has its last one",
    ),
    "the shortest first": (
        lambda lengths, max_tokens: last_chunks(sorted(lengths), max_tokens),
        "room for 4 more",
    ),
    "how many each needs": (lambda lengths, max_tokens: max_tokens, "It fits into the first chunk"),
    "all end together": (
        lambda lengths, max_tokens: [-(-sum(lengths) // max_tokens)] * len(lengths),
        "The second prompt has 3 tokens in chunk 1",
    ),
    "no empty list": (
        lambda lengths, max_tokens: last_chunks(lengths, max_tokens) or None,
        "No prompt",
    ),
}


@pytest.mark.parametrize("name", WRONG_CHUNKS)
def test_a_wrong_chunk_is_refused_by_what_it_breaks(name):
    attempt, words = WRONG_CHUNKS[name]
    verdict = LAST_CHUNKS.grade(attempt)
    assert words in verdict and "right" not in verdict, verdict


def played(lengths, max_tokens):
    left, numbers, chunk = list(lengths), [0] * len(lengths), 0
    while any(left):
        chunk, room = chunk + 1, max_tokens
        for p, count in enumerate(left):
            taken = min(count, room)
            left[p], room = count - taken, room - taken
            if taken and not left[p]:
                numbers[p] = chunk
    return tuple(numbers)


RIGHT_CHUNKS = {
    "played": played,
    "torch": lambda lengths, max_tokens: (
        (torch.tensor(lengths, dtype=int).cumsum(0) + max_tokens - 1) // max_tokens
    ),
    "numpy": lambda lengths, max_tokens: -(-np.cumsum(np.array(lengths, dtype=int)) // max_tokens),
}


@pytest.mark.parametrize("attempt", RIGHT_CHUNKS.values(), ids=RIGHT_CHUNKS)
def test_right_chunks_pass_in_any_clothes(attempt):
    assert LAST_CHUNKS.grade(attempt).startswith("last_chunks: right")


def test_draws_have_what_is_special():
    rng = random.Random(1)
    rows = [draw_row(rng) for _ in range(200)]
    assert any(row["row"] >= row["starts"][-1] for row in rows)
    assert any(len(set(row["starts"])) < len(row["starts"]) for row in rows)
    assert any(not drawn["lengths"] for drawn in (draw_lengths(rng) for _ in range(200)))
