"""Lesson 05's exercise: several tokens per block, counted after the write."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from labkit.learn.answers import plain
from labkit.learn.exercise import Exercise
from labkit.learn.gates.appends import Interrupted


def append_tokens(lengths: np.ndarray, blocks: list[int], write: Callable[[list[int]], None]) -> None:
    """Write one token per entry of `blocks` behind that block, all in one write, and count them after it."""
    earlier: Counter[int] = Counter()
    slots = []
    for block in blocks:
        slots.append(int(lengths[block]) + earlier[block])
        earlier[block] += 1
    write(slots)
    np.add.at(lengths, blocks, 1)  # `lengths[blocks] += 1` counts a block once that is named twice


class WriteFailed(RuntimeError):
    """Raised by a write that did not happen."""


# What a write can raise, by name.
FAILURES: dict[str, type[BaseException]] = {"WriteFailed": WriteFailed, "Interrupted": Interrupted}


def play_append_tokens(
    attempt: Callable, lengths: list[int], blocks: list[int], write_raises: str | None
) -> dict[str, Any]:
    """Call the attempt on an array of lengths, and return what it did, by name. `write_raises`: None for a
    write that works, or the name of one of FAILURES."""
    array = np.array(lengths)
    given_blocks = list(blocks)
    calls: list[Any] = []

    def write(slots: Sequence[int]) -> None:
        calls.append(plain(tuple(slots) if isinstance(slots, Iterator) else slots))
        if write_raises:
            raise FAILURES[write_raises]("nothing was written")

    error = None
    try:
        attempt(array, given_blocks, write)
    except tuple(FAILURES.values()) as raised:
        error = type(raised).__name__
    return {
        "the calls of write": calls,
        "the lengths": array.tolist(),
        "the list of blocks": given_blocks,
        "the error that the caller gets": error,
    }


def draw_append_tokens(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `append_tokens`: up to 6 blocks of 64 slots with room for all that is appended, up to
    6 tokens, and a write that works or fails."""
    size = rng.randint(1, 6)
    return {
        "lengths": [rng.choice((0, 58, rng.randrange(58))) for _ in range(size)],
        "blocks": [rng.randrange(size) for _ in range(rng.randint(1, 6))],
        "write_raises": rng.choice((None, None, *FAILURES)),
    }


APPEND_TOKENS = Exercise(
    solution=append_tokens,
    draw=draw_append_tokens,
    contract="Collect the slots of all tokens, write them in one call, and count only after the write: a "
    "failed write, or Ctrl-C, must leave the lengths as they were and reach the caller. A block "
    "that is named twice gets two slots and two counts, in the array that you were given.",
    play=play_append_tokens,
)
