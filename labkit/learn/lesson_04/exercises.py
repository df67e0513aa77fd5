"""Lesson 04: the exercises."""

import random
from typing import Any

from labkit.learn.exercise import Case, Exercise


def slot_mapping(
    batch_idx: list[int], block_idx: list[int], pos: list[int], batch_size: int, block_size: int
) -> list[int]:
    """One number per row of the batch: the slot of the pool that the row is written to, counted through all
    blocks; -1 for a row that is not written."""
    mapping = [-1] * batch_size
    for b, block, slot in zip(batch_idx, block_idx, pos, strict=True):
        mapping[b] = block * block_size + slot
    return mapping


def is_identity(batch_idx: list[int], batch_size: int) -> bool:
    """Whether row b of the new keys and values is request b's, for every b of the batch."""
    return batch_idx == list(range(batch_size))


def draw_slot_mapping(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `slot_mapping`: a batch, whole or not, its blocks in any order."""
    batch_size, block_size = rng.randint(1, 6), rng.choice((1, 4, 8, 64))
    num_written = rng.choice((batch_size, rng.randint(0, batch_size)))
    return {
        "batch_idx": sorted(rng.sample(range(batch_size), num_written)),
        "block_idx": rng.sample(range(12), num_written),
        "pos": [rng.randrange(block_size) for _ in range(num_written)],
        "batch_size": batch_size,
        "block_size": block_size,
    }


def _write(batch_idx: list[int], block_idx: list[int], pos: list[int], *sizes: int) -> dict[str, Any]:
    names = ("batch_idx", "block_idx", "pos", "batch_size", "block_size")
    return dict(zip(names, (batch_idx, block_idx, pos, *sizes), strict=True))


SLOT_MAPPING = Exercise(
    name="slot_mapping",
    cases=(
        Case(
            _write([0], [2], [3], 1, 8),
            [19],
            "Blocks 0 and 1 come before block 2, with 8 slots each; slot 3 is the fourth of its block.",
        ),
        Case(
            _write([0, 1, 2], [0, 3, 1], [5, 0, 7], 3, 8),
            [5, 24, 15],
            "Row b goes to slot pos[b] of block block_idx[b]: block * block_size + slot.",
        ),
        Case(
            _write([0, 1], [3, 1], [2, 0], 2, 4),
            [14, 4],
            "A block has block_size slots, and that differs from one call to the next.",
        ),
        Case(
            _write([0, 2], [1, 0], [1, 2], 4, 4),
            [5, -1, 2, -1],
            "There is a number for each of the batch's rows; rows 1 and 3 are not written, which -1 says.",
        ),
        Case(
            _write([1, 2], [1, 0], [1, 2], 3, 4),
            [-1, 5, 2],
            "The i-th entries of block_idx and pos are for row batch_idx[i], not for row i.",
        ),
        Case(
            _write([0, 1], [0, 1], [0, 0], 2, 4),
            [0, 4],
            "Slot 0 of block 0 is slot 0 of the pool, and is written like any other.",
        ),
        Case(_write([], [], [], 2, 8), [-1, -1], "A batch of which no row is written still has two rows."),
    ),
    solution=slot_mapping,
    draw=draw_slot_mapping,
    drawn_hint="Begin with -1 for every row, then put block * block_size + slot where batch_idx says.",
)


def draw_is_identity(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `is_identity`: the identity of a batch, or a list that is nearly the identity."""
    batch_size = rng.randint(1, 6)
    rows = list(range(batch_size))
    b = rng.randrange(batch_size)
    nearly = {
        "itself": rows,
        "two swapped": [*rows[:b], *reversed(rows[b : b + 2]), *rows[b + 2 :]],
        "shuffled": rng.sample(rows, batch_size),
        "another in its place": [*rows[:b], rng.choice((-b, b - batch_size, b + 1)), *rows[b + 1 :]],
        "all one further": [row + 1 for row in rows],
        "one too many": [*rows, batch_size],
        "one before it": [batch_size, *rows],
        "a part": rows[: b + 1],
        "without one": [row for row in range(batch_size + 1) if row != b],
    }
    return {"batch_idx": rng.choice([rows, *nearly.values()]), "batch_size": batch_size}


IS_IDENTITY = Exercise(
    name="is_identity",
    cases=(
        Case(
            {"batch_idx": [0, 1, 2, 3], "batch_size": 4},
            True,
            "Row b is request b, for b = 0, 1, 2 and 3: one True for the whole batch.",
        ),
        Case(
            {"batch_idx": [0, 1, 3], "batch_size": 4},
            False,
            "Request 2 is missing, and from there on rows and requests are off by one.",
        ),
        Case(
            {"batch_idx": [0, 1], "batch_size": 4},
            False,
            "The first two rows agree, but a kernel without batch_idx serves all four requests.",
        ),
        Case(
            {"batch_idx": [1, 0, 2, 3], "batch_size": 4},
            False,
            "All four are there, but requests 0 and 1 would each get the other's keys and values. (The "
            "package may look at the length alone: its batch_idx is always rising.)",
        ),
        Case(
            {"batch_idx": [0, 1, 1, 3], "batch_size": 4},
            False,
            "Request 1 is named twice and request 2 never: the number of entries is not enough.",
        ),
        Case(
            {"batch_idx": [1, 2, 3, 4], "batch_size": 4},
            False,
            "Rising by one, and four of them, but row 0 is request 1's: the first must be 0.",
        ),
        Case(
            {"batch_idx": [0, 1, 2, 3, 4], "batch_size": 4},
            False,
            "The batch has four requests, and there is a fifth entry: it is not this batch's identity.",
        ),
        Case(
            {"batch_idx": [0], "batch_size": 1},
            True,
            "A batch of one is written whole.",
        ),
    ),
    solution=is_identity,
    draw=draw_is_identity,
    drawn_hint="There must be an entry for each request of the batch, and entry b must be b.",
)
