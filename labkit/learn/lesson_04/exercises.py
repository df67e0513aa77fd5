"""Lesson 04: the exercise."""

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
    solution=slot_mapping,
    draw=draw_slot_mapping,
    contract="Begin with -1 for every row of the batch. Entry i of block_idx and pos belongs to row "
    "batch_idx[i]: put block * block_size + slot there.",
)
