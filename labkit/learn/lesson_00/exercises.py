"""Lesson 00: its two exercises, where a token lies and what one more takes."""

import random
from typing import Any

from labkit.learn.exercise import Exercise


def locate(position: int, block_table: list[int], block_size: int) -> tuple[int, int]:
    """Where the token at `position` lies: its physical block and the slot in it."""
    return block_table[position // block_size], position % block_size


def blocks_taken(num_tokens: int, last_is_shared: bool, block_size: int) -> int:
    """How many free blocks, 0 or 1, one more token behind a sequence of `num_tokens` takes."""
    if num_tokens % block_size == 0:
        return 1  # a boundary: the last block is full, or there is none yet
    return int(last_is_shared)  # copy-on-write


BLOCK_SIZES = (1, 2, 3, 4, 12, 16, 64)


def draw_position(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `locate`: a position anywhere in a text of whole blocks, often at an edge of one."""
    block_size = rng.choice(BLOCK_SIZES)
    block_table = rng.sample(range(20), rng.randint(1, 5))
    position = block_size * rng.randrange(len(block_table))
    position += rng.choice((0, block_size - 1, rng.randrange(block_size)))
    return {"position": position, "block_table": block_table, "block_size": block_size}


def draw_sequence(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `blocks_taken`: about half of the sequences end with a full block or are empty; an
    empty one shares no block."""
    block_size = rng.choice(BLOCK_SIZES)
    num_tokens = block_size * rng.randrange(9) + rng.choice((0, rng.randrange(block_size)))
    return {
        "num_tokens": num_tokens,
        "last_is_shared": num_tokens > 0 and rng.random() < 0.5,
        "block_size": block_size,
    }


LOCATE = Exercise(
    solution=locate,
    draw=draw_position,
    contract="Divide the position by the block size: the quotient picks the entry of the table, the "
    "remainder is the slot. Return two numbers, the physical block and then the slot.",
)

BLOCKS_TAKEN = Exercise(
    solution=blocks_taken,
    draw=draw_sequence,
    contract="A full last block, or none, needs a new block (a full block is never written again, so "
    "sharing it costs nothing). A shared last block with room needs a copy. Otherwise the token "
    "goes in place.",
)
