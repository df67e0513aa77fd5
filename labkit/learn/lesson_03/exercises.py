"""Lesson 03: where a program stores."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from labkit.kernels.triton_runtime import triton
from labkit.learn.exercise import Exercise
from labkit.learn.gates import Report
from labkit.learn.steps import noted


def offsets(
    b: int, h: int, block_idx: Sequence[int], slot: int, strides: tuple[int, int, int], D: int, BLOCK_D: int
) -> list[int]:
    """The offsets in a layer's cache [N, H, block_size, D] at which program (b, h) of a full-batch kernel
    stores: the values of one head in one slot."""
    stride_n, stride_h, stride_t = strides
    first = block_idx[b] * stride_n + h * stride_h + slot * stride_t
    return [first + d for d in range(BLOCK_D) if d < D]


def draw_program(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `offsets`: a pool in which the values of a head or of a slot are side by side, with
    or without unused values between them."""
    H, block_size, D = rng.randint(1, 3), rng.choice((1, 3, 4, 16)), rng.choice((1, 3, 4, 6, 8))
    inner = D + rng.choice((0, 0, 2))
    stride_h, stride_t = rng.choice(((block_size * inner, inner), (inner, H * inner)))
    block_idx = rng.sample(range(12), rng.randint(1, 5))
    return {
        "b": rng.randrange(len(block_idx)),
        "h": rng.randrange(H),
        "block_idx": block_idx,
        "slot": rng.choice((0, block_size - 1, rng.randrange(block_size))),
        "strides": (H * block_size * inner + rng.choice((0, 0, 5)), stride_h, stride_t),
        "D": D,
        "BLOCK_D": triton.next_power_of_2(D),
    }


STARTS = "a program starts at its request's block, its head and its slot, each times its own stride"
OFFSETS = Exercise(
    solution=offsets,
    draw=draw_program,
    contract="Of its BLOCK_D lanes only those with d < D store. Return the offsets, lowest first.",
)


def check_offsets(attempt: Callable) -> Report:
    """What the gate says of step 2; a right answer is noted in the reader's progress."""
    name, _, said = OFFSETS.grade(attempt)[:].partition(": ")
    is_wrong = said.startswith("with ")
    text = f"{name} breaks a contract: {STARTS}: {said}" if is_wrong else f"{name}: {said}"
    return noted(Report(said.startswith("right"), text), "03", "my_offsets", attempt)
