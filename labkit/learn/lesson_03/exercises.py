"""Lesson 03: the exercises on where a program stores, and on when requests meet at one slot."""

import random
from collections.abc import Sequence
from typing import Any

from labkit.learn.exercise import Case, Exercise

# --- exercise 1 ----------------------------------------------------------------------------------------


def offsets(
    program: tuple[int, int, int],
    block_idx: Sequence[int],
    pos: int,
    strides: tuple[int, int, int],
    D: int,
    BLOCK_D: int,
) -> list[int]:
    """The offsets in a layer's cache [N, H, block_size, D] at which one program of the full-batch kernel
    stores."""
    b, h, chunk = program
    stride_n, stride_h, stride_t = strides
    start = block_idx[b] * stride_n + h * stride_h + pos * stride_t
    return [start + d for d in range(chunk * BLOCK_D, (chunk + 1) * BLOCK_D) if d < D]


def draw_program(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `offsets`: a pool in which the numbers of a head or of a slot lie together, with or
    without unused numbers between them."""
    H, block_size, D = rng.randint(1, 3), rng.choice((1, 3, 4, 16)), rng.choice((1, 3, 4, 6, 8))
    BLOCK_D = rng.choice((1, 2, 4, 8, 16))
    inner = D + rng.choice((0, 0, 2))
    if rng.random() < 0.5:
        stride_h, stride_t = block_size * inner, inner
    else:
        stride_h, stride_t = inner, H * inner
    block_idx = rng.sample(range(12), rng.randint(1, 5))
    return {
        "program": (rng.randrange(len(block_idx)), rng.randrange(H), rng.randrange(-(-D // BLOCK_D))),
        "block_idx": block_idx,
        "pos": rng.choice((0, block_size - 1, rng.randrange(block_size))),
        "strides": (H * block_size * inner + rng.choice((0, 0, 5)), stride_h, stride_t),
        "D": D,
        "BLOCK_D": BLOCK_D,
    }


PLAIN = {"block_idx": [3, 0, 5], "pos": 0, "strides": (32, 16, 4), "D": 4, "BLOCK_D": 4}

OFFSETS = Exercise(
    name="offsets",
    cases=(
        Case(
            {"program": (1, 0, 0), **PLAIN},
            [0, 1, 2, 3],
            "Program (1, 0, 0) writes request 1 to its block, block_idx[1], which is block 0 here: the four "
            "numbers of head 0 lie at the pool's very start. Return a list of them all, the lowest d first.",
        ),
        Case(
            {"program": (0, 0, 0), **PLAIN},
            [96, 97, 98, 99],
            "Block 3 begins 3 * strides[0] behind the start.",
        ),
        Case(
            {"program": (2, 1, 0), **PLAIN},
            [176, 177, 178, 179],
            "The second number of a program is its head; each head is strides[1] behind the one before.",
        ),
        Case(
            {"program": (1, 0, 0), **PLAIN, "pos": 3},
            [12, 13, 14, 15],
            "`pos` is the slot in the block, and slots are strides[2] apart.",
        ),
        Case(
            {"program": (1, 0, 0), **PLAIN, "strides": (64, 32, 8), "D": 6, "BLOCK_D": 8},
            [0, 1, 2, 3, 4, 5],
            "BLOCK_D is 8 and the head has 6 numbers: the mask `d < D` keeps the last two from being stored.",
        ),
        Case(
            {"program": (1, 0, 1), **PLAIN, "strides": (64, 32, 8), "D": 6, "BLOCK_D": 4},
            [4, 5],
            "The third number of a program is its piece of the head: piece 1 begins at d = BLOCK_D, and the "
            "mask is about d, not about the lane.",
        ),
        Case(
            {"program": (2, 1, 0), **PLAIN, "pos": 2, "strides": (32, 4, 8)},
            [180, 181, 182, 183],
            "Strides are arguments: this pool keeps the heads of a slot together, so that strides[1] is less "
            "than strides[2].",
        ),
        Case(
            {"program": (0, 0, 0), **PLAIN, "block_idx": [43691], "strides": (49152, 4096, 64)},
            [2147500032, 2147500033, 2147500034, 2147500035],
            "So far behind the start, an offset no longer fits into 32 bits: multiply in 64.",
        ),
    ),
    solution=offsets,
    draw=draw_program,
    drawn_hint="A program starts at its request's block, its head and the slot, each times its own stride. "
    "It stores the d of its piece, BLOCK_D of them, that are less than D.",
)

# --- exercise 2 ----------------------------------------------------------------------------------------


def full_batch_steps(positions: Sequence[int], steps_left: Sequence[int], block_size: int) -> int:
    """How many decode steps take the full-batch path until all requests have ended. Request i writes at
    positions[i] of its text in the first step and one further in each, for steps_left[i] steps."""
    count = 0
    for step in range(max(steps_left)):
        pairs = zip(positions, steps_left, strict=True)
        slots = {(position + step) % block_size for position, left in pairs if step < left}
        count += len(slots) == 1
    return count


def draw_requests(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `full_batch_steps`: requests at one slot, but for some, that end together or not."""
    count, block_size = rng.choice((1, 2, 3, 4)), rng.choice((1, 3, 4, 16, 64))
    slot = rng.choice((0, block_size - 1, rng.randrange(block_size)))
    positions = [slot + block_size * rng.randrange(3) for _ in range(count)]
    steps_left = [rng.randint(1, 9)] * count
    for i in range(count):
        if rng.random() < 0.3:
            positions[i] += rng.randint(1, 5)
        if rng.random() < 0.4:
            steps_left[i] = rng.randint(0, 9)
    return {"positions": positions, "steps_left": steps_left, "block_size": block_size}


FULL_BATCH_STEPS = Exercise(
    name="full_batch_steps",
    cases=(
        Case(
            {"positions": [20, 20, 20], "steps_left": [5, 5, 5], "block_size": 64},
            5,
            "All go from slot to slot together, so all 5 steps write the whole batch at one slot.",
        ),
        Case(
            {"positions": [20, 20, 23], "steps_left": [5, 5, 5], "block_size": 64},
            0,
            "Who is three tokens ahead stays three ahead: slots that differ go on differing.",
        ),
        Case(
            {"positions": [20, 20, 23], "steps_left": [5, 5, 2], "block_size": 64},
            3,
            "The request that is ahead ends after 2 steps. The batch is then the other two, at one slot.",
        ),
        Case(
            {"positions": [20, 84, 148], "steps_left": [4, 4, 4], "block_size": 64},
            4,
            "What counts is the slot in the block, not the position in the text: 84 and 148 are slot 20 of "
            "later blocks.",
        ),
        Case(
            {"positions": [62, 62], "steps_left": [4, 4], "block_size": 64},
            4,
            "A boundary is no exception: slots 62, 63, 0 and 1, and at each step both requests are at one.",
        ),
        Case(
            {"positions": [62, 2], "steps_left": [4, 4], "block_size": 64},
            0,
            "One request crosses into its next block and the slots still differ, by as much as before.",
        ),
        Case(
            {"positions": [5, 9], "steps_left": [3, 3], "block_size": 4},
            3,
            "The block size is an argument: with blocks of 4, positions 5 and 9 are both slot 1.",
        ),
        Case(
            {"positions": [20, 23], "steps_left": [2, 5], "block_size": 64},
            3,
            "When the first has ended the second goes on alone, and one request alone is at one slot.",
        ),
        Case(
            {"positions": [20, 23, 20], "steps_left": [3, 3, 3], "block_size": 64},
            0,
            "The slot that differs can be anywhere in the batch: look at all of them.",
        ),
        Case(
            {"positions": [7, 8], "steps_left": [6, 0], "block_size": 64},
            6,
            "A request without steps left takes no part.",
        ),
    ),
    solution=full_batch_steps,
    draw=draw_requests,
    drawn_hint="In each step look at the requests that have steps left, and at the slots they write in that "
    "step: the path is full-batch if there is one slot, as long as there is a request.",
)
