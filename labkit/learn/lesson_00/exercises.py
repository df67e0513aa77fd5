"""Lesson 00: its two exercises, where a token lies and what one more takes."""

import random
from typing import Any

from labkit.learn.exercise import Case, Exercise


def locate(position: int, block_table: list[int], block_size: int) -> tuple[int, int]:
    """Where the token at `position` lies: its physical block and the slot in it."""
    return block_table[position // block_size], position % block_size


def blocks_taken(num_tokens: int, last_is_shared: bool, block_size: int) -> int:
    """How many free blocks, 0 or 1, one more token behind a sequence of `num_tokens` takes."""
    if num_tokens % block_size == 0:
        return 1  # a boundary: the last block is full, or there is none yet
    return int(last_is_shared)  # copy-on-write


TABLE = [7, 2, 5]
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
    name="locate",
    cases=(
        Case(
            {"position": 0, "block_table": TABLE, "block_size": 4},
            (7, 0),
            "Position 0 is slot 0 of the first block, and the table says that this is block 7. Return two "
            "numbers: the physical block, then the slot.",
        ),
        Case(
            {"position": 3, "block_table": TABLE, "block_size": 4},
            (7, 3),
            "Positions 0 to 3 fill the first block of 4: the last of them is in slot 3.",
        ),
        Case(
            {"position": 4, "block_table": TABLE, "block_size": 4},
            (2, 0),
            "Position 4 opens the second logical block, and the table says which physical block that is.",
        ),
        Case(
            {"position": 10, "block_table": TABLE, "block_size": 4},
            (5, 2),
            "Divide by the block size: the quotient picks the entry of the table, the remainder the slot.",
        ),
        Case(
            {"position": 70, "block_table": [9, 1], "block_size": 64},
            (1, 6),
            "The block size is an argument; it is not always 4.",
        ),
        Case(
            {"position": 7, "block_table": [8, 6, 1], "block_size": 3},
            (1, 1),
            "The block size need not be a power of 2: 7 = 2 * 3 + 1 is in the third block, slot 1.",
        ),
    ),
    solution=locate,
    draw=draw_position,
    drawn_hint="The quotient by the block size picks the entry of the table, the remainder is the slot.",
)

BLOCKS_TAKEN = Exercise(
    name="blocks_taken",
    cases=(
        Case(
            {"num_tokens": 5, "last_is_shared": False, "block_size": 4},
            0,
            "The last block holds 1 of 4 tokens and is yours alone: the next token goes in place.",
        ),
        Case(
            {"num_tokens": 0, "last_is_shared": False, "block_size": 4},
            1,
            "An empty sequence has no block to write to.",
        ),
        Case(
            {"num_tokens": 8, "last_is_shared": False, "block_size": 4},
            1,
            "8 tokens fill two blocks of 4: the next token crosses a boundary.",
        ),
        Case(
            {"num_tokens": 5, "last_is_shared": True, "block_size": 4},
            1,
            "Somebody else reads the half-filled last block: writing to it takes a copy of your own.",
        ),
        Case(
            {"num_tokens": 8, "last_is_shared": True, "block_size": 4},
            1,
            "A full block is never written again, so sharing it costs nothing: one new block, no copy.",
        ),
        Case(
            {"num_tokens": 6, "last_is_shared": False, "block_size": 4},
            0,
            "The second block holds 2 of 4 tokens: the next token goes in place, and takes nothing.",
        ),
        Case(
            {"num_tokens": 8, "last_is_shared": False, "block_size": 64},
            0,
            "The block size is an argument, not always 4: 8 tokens leave room for 56 in a block of 64.",
        ),
        Case(
            {"num_tokens": 15, "last_is_shared": False, "block_size": 3},
            1,
            "Neither is it always even: 15 tokens fill five blocks of 3.",
        ),
    ),
    solution=blocks_taken,
    draw=draw_sequence,
    drawn_hint="A full last block, or none, takes a new one. A shared one with room takes a copy. Others: 0.",
)
