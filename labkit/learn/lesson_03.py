"""Lesson 03: the exercises, and what its cells count and compute."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from labkit.kvcache.kv_write import is_constant
from labkit.learn.exercise import Case, Exercise
from labkit.watch import Positions

# --- which path ----------------------------------------------------------------------------------------


def steps_by_path(run: Positions, batch_size: int) -> dict[str, int]:
    """How many decode steps there were, how many took the full-batch path, how many of those had the whole
    batch, and how many took the generic path."""
    full = [step for step in run.steps if step.path == "full_batch"]
    return {
        "decode steps": len(run.steps),
        "full_batch": len(full),
        "of them with the whole batch": sum(len(step.slots) == batch_size for step in full),
        "generic": sum(step.path == "generic" for step in run.steps),
    }


# --- Triton --------------------------------------------------------------------------------------------


def python_of(kernel: Callable) -> Callable:
    """The Python function under `@triton.jit`, with a source that can be shown; a kernel without Triton is
    returned as it is."""
    return getattr(kernel, "fn", kernel)  # without Triton the decorator returns the function


def compiled_for(argument: int) -> str:
    """What Triton compiles a kernel for when it gets this whole number in an argument that
    `do_not_specialize` does not name."""
    if argument == 1:
        return "1"
    return "a multiple of 16" if argument % 16 == 0 else "any number"


# --- a large pool --------------------------------------------------------------------------------------


def first_block_past_int32(numbers_a_block: int) -> int:
    """The lowest block index whose offset, counted in numbers from the pool's start, does not fit into an
    int32."""
    return -(-(2**31) // numbers_a_block)


def pool_past_int32(num_pointers: int, H: int, D: int, block_size: int = 64) -> dict[str, int | float]:
    """How large a cache of 16-bit keys and values is when offsets in it no longer fit into an int32, in all.

    num_pointers: how many pointers the cache has for keys, and as many for values: one per layer, or one for
    all layers. Each has that many blocks behind it.
    """
    numbers = H * block_size * D
    block = first_block_past_int32(numbers)
    size = num_pointers * block * numbers * 2 * 2
    return {"numbers a block": numbers, "first bad block": block, "cache (GB)": round(size / 1e9, 1)}


# --- exercises -----------------------------------------------------------------------------------------


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


def which_path(batch_size: int, positions: Sequence[int], block_size: int) -> str:
    """The path that `FullBatchWrite` takes, "full_batch" or "generic", for tokens at these positions in their
    texts, out of a batch of `batch_size`."""
    slots = [position % block_size for position in positions]
    return "full_batch" if len(slots) == batch_size and is_constant(slots) else "generic"


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


def draw_batch(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `which_path`: equal slots in any blocks; or one slot, or some, that differ; or a part
    of the batch."""
    batch_size, block_size = rng.choice((1, 2, 3, 4, 6)), rng.choice((1, 3, 4, 16, 64))
    slot = rng.choice((0, block_size - 1, rng.randrange(block_size)))
    positions = [slot + block_size * rng.randrange(4) for _ in range(batch_size)]
    what = rng.choice(("equal", "an outlier", "an outlier", "two slots", "any", "a part"))
    if what == "an outlier":
        positions[rng.randrange(batch_size)] += rng.choice((1, block_size // 2))
    elif what == "two slots":
        positions = [position + rng.randrange(2) for position in positions]
    elif what == "any":
        positions = [rng.randrange(4 * block_size) for _ in range(batch_size)]
    elif what == "a part":
        positions = positions[: rng.randint(1, batch_size)]
    return {"batch_size": batch_size, "positions": positions, "block_size": block_size}


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

WHICH_PATH = Exercise(
    name="which_path",
    cases=(
        Case(
            {"batch_size": 4, "positions": [20, 20, 20, 20], "block_size": 64},
            "full_batch",
            "All of the batch is written, and all to slot 20: one number says it.",
        ),
        Case(
            {"batch_size": 4, "positions": [20, 20, 20, 23], "block_size": 64},
            "generic",
            "One slot differs, and one is enough: there is one `pos` for all or a tensor.",
        ),
        Case(
            {"batch_size": 4, "positions": [20, 20, 20], "block_size": 64},
            "generic",
            "Three of four are written. Row b of key_new is then not the b-th that is written, so the kernel "
            "must be told which rows: batch_idx.",
        ),
        Case(
            {"batch_size": 4, "positions": [20, 84, 20, 148], "block_size": 64},
            "full_batch",
            "`pos` is the slot in the block, not the position in the text: 84 and 148 are slot 20 of a later "
            "block, and the blocks are told one by one anyway.",
        ),
        Case(
            {"batch_size": 2, "positions": [64, 128], "block_size": 64},
            "full_batch",
            "A boundary is no exception: `append_token_batch` makes the new blocks ready before it writes, "
            "and both tokens go to slot 0.",
        ),
        Case(
            {"batch_size": 1, "positions": [7], "block_size": 64},
            "full_batch",
            "One request alone always agrees with itself.",
        ),
        Case(
            {"batch_size": 3, "positions": [5, 9, 13], "block_size": 4},
            "full_batch",
            "The block size is an argument: with blocks of 4 all of these are slot 1.",
        ),
        Case(
            {"batch_size": 4, "positions": [20, 23, 20, 20], "block_size": 64},
            "generic",
            "The slot that differs can be anywhere in the batch: look at all of them.",
        ),
        Case(
            {"batch_size": 4, "positions": [20, 20, 23, 23], "block_size": 64},
            "generic",
            "Each slot occurs twice here, and there are still two of them: one `pos` must do for all.",
        ),
        Case(
            {"batch_size": 3, "positions": [20, 19, 21], "block_size": 64},
            "generic",
            "Three slots, 20 on average, and still three slots: each must be equal to the others.",
        ),
    ),
    solution=which_path,
    draw=draw_batch,
    drawn_hint="Full-batch means: as many are written as the batch has, and all go to one and the same slot.",
)
