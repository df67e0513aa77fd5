"""Lesson 04: the exercises."""

import random
from typing import Any

from labkit.learn.exercise import Exercise


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


SLOT_MAPPING = Exercise(
    name="slot_mapping",
    solution=slot_mapping,
    draw=draw_slot_mapping,
    contract="Begin with -1 for every row of the batch. Entry i of block_idx and pos belongs to row "
    "batch_idx[i]: put block * block_size + slot there.",
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
    solution=is_identity,
    draw=draw_is_identity,
    contract="There must be one entry for each request of the batch, and entry b must be b.",
)
