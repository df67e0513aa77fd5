"""Lesson 01: the exercise on moves that make a row stale."""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from labkit.engine import InferenceSession
from labkit.kvcache import KVBlockManager
from labkit.learn.answers import one_line
from labkit.learn.exercise import BrokenContract, Exercise, answer_of

Move = tuple[str | int, ...]  # the name of an operation and its arguments
NUM_BLOCKS = 10  # in the pool on which the moves are played


def signature_of(block_ids: Sequence[int]) -> tuple[int, int]:
    """The number of blocks and the last one's id (-1 without blocks), which a session compares to know
    whether its row of the block table is still right."""
    return len(block_ids), block_ids[-1] if block_ids else -1


def make_moves(block_ids: list[int], moves: Iterable[Move]) -> None:
    """Make the moves on the list of blocks, in place. Raises BrokenContract for an unknown one."""
    for name, *numbers in moves:
        if name == "append":
            block_ids += numbers
        elif name == "replace_last":
            block_ids[-1:] = numbers
        elif name == "replace":
            block_ids[numbers[0]] = numbers[1]
        elif name == "truncate":
            del block_ids[numbers[0] :]
        else:
            raise BrokenContract(f"{name!r} is none of the operations.")


def play_moves(attempt: Callable, block_ids: list[int], free_ids: list[int]) -> dict[str, list[int]]:
    """Make the attempt's moves on a session's list, and return the row that attention reads after them by the
    package's block table cache; it is asked for the row before them, too, as two decode steps would. Raises
    BrokenContract if that row is right."""
    moves = answer_of(attempt, block_ids=block_ids, free_ids=free_ids)
    session = InferenceSession(
        KVBlockManager(num_layers=1, num_heads=1, head_dim=1, block_size=4, max_blocks_per_layer=NUM_BLOCKS)
    )
    now = session.block_ids_per_layer[0]
    now += block_ids  # which it names without holding them
    session.get_paged_block_table_row_cpu(layer_idx=0, offset=0)
    make_moves(now, moves)
    row = session.get_paged_block_table_row_cpu(layer_idx=0, offset=0)[: len(now)].tolist()
    before, after = signature_of(block_ids), signature_of(now)
    told = f"gave {one_line(repr(moves))}, after which the list is {now} and"
    if before != after:
        raise BrokenContract(f"{told} the signature changed from {before} to {after}: the row was made anew.")
    if row == now:
        raise BrokenContract(f"{told} the signature is still {after}, but the row is right.")
    return {"the row that attention reads": row}


def break_the_row(block_ids: list[int], free_ids: list[int]) -> list[Move]:
    """Moves that make a row stale: replace a block that is not the last, which neither the number of blocks
    nor the last id shows."""
    return [("replace", 0, free_ids[0])]


def draw_list(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `break_the_row`: a list of 2 to 6 blocks of the pool, and the free ones."""
    ids = rng.sample(range(NUM_BLOCKS), NUM_BLOCKS)
    length = rng.randint(2, 6)
    return {"block_ids": ids[:length], "free_ids": ids[length:]}


BREAK_THE_ROW = Exercise(
    solution=break_the_row,
    draw=draw_list,
    contract="The row must be stale after your moves: its signature is the same, and some block before the"
    " last is another one.",
    play=play_moves,
)
