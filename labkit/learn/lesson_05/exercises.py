"""Lesson 05's exercise: several tokens per block, counted after the write."""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from labkit.learn.exercise import Exercise


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


def play_append_tokens(
    attempt: Callable, lengths: list[int], blocks: list[int], write_fails: bool
) -> dict[str, Any]:
    """Call the attempt on an array of lengths, with a write that works or fails, and return what it did."""
    array = np.array(lengths)
    calls: list[list[int]] = []

    def write(slots: Iterable[int]) -> None:
        calls.append([int(slot) for slot in slots])
        if write_fails:
            raise WriteFailed("nothing was written")

    is_told = False
    try:
        attempt(array, blocks, write)
    except WriteFailed:
        is_told = True
    return {"the calls of write": calls, "the lengths": array.tolist(), "the caller gets the error": is_told}


def draw_append_tokens(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `append_tokens`: up to 6 blocks of 64 slots with room for all that is appended, up to
    6 tokens, and a write that works or fails."""
    size = rng.randint(1, 6)
    return {
        "lengths": [rng.choice((0, 58, rng.randrange(58))) for _ in range(size)],
        "blocks": [rng.randrange(size) for _ in range(rng.randint(1, 6))],
        "write_fails": rng.random() < 0.5,
    }


APPEND_TOKENS = Exercise(
    solution=append_tokens,
    draw=draw_append_tokens,
    contract="Collect the slots of all tokens, write them in one call, and count only after the write: a "
    "failed write must leave the lengths as they were, and its error must reach the caller. A block "
    "that is named twice gets two slots and two counts, in the array that you were given.",
    play=play_append_tokens,
)
