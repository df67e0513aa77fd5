"""The exercises of lesson 00."""

from labkit.learn.exercise import Case, Exercise


def locate(position: int, block_table: list[int], block_size: int) -> tuple[int, int]:
    """Where the token at `position` lies: its physical block and the slot in it."""
    return block_table[position // block_size], position % block_size


def blocks_taken(num_tokens: int, last_is_shared: bool, block_size: int) -> int:
    """Free blocks that one more token takes, 0 or 1, behind a sequence of `num_tokens`."""
    if num_tokens % block_size == 0:
        return 1  # a boundary: the last block is full, or there is none yet
    return int(last_is_shared)  # copy-on-write


TABLE = [7, 2, 5]

LOCATE = Exercise(
    name="locate",
    cases=(
        Case(
            {"position": 0, "block_table": TABLE, "block_size": 4},
            (7, 0),
            "Position 0 is slot 0 of the first block.",
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
    ),
    solution=locate,
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
    ),
    solution=blocks_taken,
)
