"""Lesson 05's exercises: several tokens per block, counted after the write; and how many records are made."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from labkit.learn.answers import plain
from labkit.learn.exercise import Case, Exercise, called

# --- append_tokens --------------------------------------------------------------------------------------


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


class Interrupted(BaseException):
    """Raised by a write that the reader interrupts; like KeyboardInterrupt, it is no Exception."""


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
        called(attempt, lengths=array, blocks=given_blocks, write=write)
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


def _tokens(lengths: list[int], blocks: list[int], write_raises: str | None = None) -> dict[str, Any]:
    return {"lengths": lengths, "blocks": blocks, "write_raises": write_raises}


TWO = [3, 9, 5], [0, 2]
TWICE = [3, 9, 5], [2, 0, 2]

APPEND_TOKENS = Exercise(
    name="append_tokens",
    cases=(
        Case(
            _tokens(*TWO),
            {"the calls of write": [[3, 5]]},
            "`write` takes the slots of all tokens at once, and a block's next slot is its length before "
            "the token is counted.",
        ),
        Case(
            _tokens(*TWO),
            {"the lengths": [4, 9, 6]},
            "When the write has succeeded, a block holds one token more for each time that it is named. "
            "Count in the array that you were given: others read it.",
        ),
        Case(
            _tokens(*TWICE),
            {"the calls of write": [[5, 3, 6]]},
            "Two tokens of one block go to two slots: the second one behind the first.",
        ),
        Case(
            _tokens(*TWICE),
            {"the lengths": [4, 9, 7]},
            "A block that is named twice holds two tokens more. `lengths[blocks] += 1` reads all, adds, and "
            "writes all: the second 6 is written over the first.",
        ),
        Case(
            _tokens(*TWO, write_raises="WriteFailed"),
            {"the lengths": [3, 9, 5]},
            "Nothing was written, so nothing may be counted. Count after the write.",
        ),
        Case(
            _tokens(*TWO, write_raises="WriteFailed"),
            {"the error that the caller gets": "WriteFailed"},
            "Let the error through: the engine must learn of it to undo the other layers of the step.",
        ),
        Case(
            _tokens(*TWO, write_raises="WriteFailed"),
            {"the calls of write": [[3, 5]]},
            "Write once. Whether to try again is for the caller to say.",
        ),
        Case(
            _tokens(*TWICE, write_raises="Interrupted"),
            {"the lengths": [3, 9, 5]},
            "Ctrl-C is no `Exception`, so `except Exception` does not undo it. What is counted after the "
            "write needs no undoing.",
        ),
        Case(
            _tokens([0], [0]),
            {"the calls of write": [[0]], "the lengths": [1]},
            "An empty block's first slot is 0.",
        ),
        Case(
            _tokens(*TWICE),
            {"the list of blocks": [2, 0, 2]},
            "Leave the list of blocks as it is: the caller goes on using it.",
        ),
    ),
    solution=append_tokens,
    draw=draw_append_tokens,
    drawn_hint="Collect the slots, write them once, and then count each token, in the array.",
    play=play_append_tokens,
)


# --- records_created ------------------------------------------------------------------------------------


def records_created(
    block_info: str, num_layers: int, in_place: int, boundary: int, copy_on_write: int
) -> int:
    """How many block records a decode step creates, by how many requests take each path of the append."""
    made_ready = boundary + copy_on_write  # each is a new block, which has a record in any case
    if block_info == "mutable":
        return num_layers * made_ready
    # One more for each token counted, and one where a copy takes over the length of what it copies.
    return num_layers * (in_place + 2 * boundary + 3 * copy_on_write)


def _step_of(block_info: str, num_layers: int, *requests: int) -> dict[str, object]:
    paths = dict(zip(("in_place", "boundary", "copy_on_write"), requests, strict=True))
    return {"block_info": block_info, "num_layers": num_layers, **paths}


def draw_records_created(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `records_created`: a kind of record, a number of layers, and how many requests take
    each path."""
    requests = [rng.choice((0, 1, rng.randint(2, 64))) for _ in range(3)]
    return _step_of(rng.choice(("replaced", "mutable")), rng.choice((1, 2, 12, 48)), *requests)


RECORDS_CREATED = Exercise(
    name="records_created",
    cases=(
        Case(
            _step_of("replaced", 12, 64, 0, 0),
            768,
            "Counting a token replaces its block's record, in each layer.",
        ),
        Case(
            _step_of("mutable", 12, 64, 0, 0),
            0,
            "A mutable record counts in place: no path but a new block needs a new record.",
        ),
        Case(
            _step_of("mutable", 12, 60, 4, 0),
            48,
            "A new block has a record of its own, mutable or not.",
        ),
        Case(
            _step_of("replaced", 12, 60, 4, 0),
            816,
            "At a boundary a new block gets a record that says 0 tokens, and counting its first token "
            "replaces it.",
        ),
        Case(
            _step_of("mutable", 6, 0, 0, 3),
            18,
            "Copy-on-write takes a new block, so there is a new record.",
        ),
        Case(
            _step_of("replaced", 6, 0, 0, 3),
            54,
            "A copied block's record is made with 0 tokens, replaced to take over the length of the block it "
            "copies, and replaced again to count the token.",
        ),
    ),
    solution=records_created,
    draw=draw_records_created,
    drawn_hint="Add up what the requests of each path create, then take it for each layer.",
)
