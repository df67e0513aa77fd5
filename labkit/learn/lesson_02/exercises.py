"""Lesson 02: the exercises on the blocks that a step takes, and on a plan of its copies and writes."""

import random
from collections.abc import Sequence
from typing import Any

from labkit.learn.exercise import Case, Exercise
from labkit.learn.lesson_02.plans import play_plan


def draw_sharers(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `plan`: groups of requests that share a last block, some with a holder outside the
    batch, in any order."""
    block_size = rng.choice((1, 2, 3, 4, 16))
    numbers = rng.sample(range(40), 40)
    requests = []
    for _ in range(rng.randint(1, 3)):
        length = rng.choice((0, block_size, rng.randint(1, block_size)))
        inside, outside = rng.randint(1, 4), rng.choice((0, 0, 1, 2))
        if length:
            requests += [(numbers.pop(), length, inside + outside)] * inside
        else:
            requests.append((None, 0, 0))
    rng.shuffle(requests)
    last_blocks, lengths, holders = map(list, zip(*requests, strict=True))
    free = numbers[: len(requests) + rng.randrange(2)]
    return {
        "last_blocks": last_blocks,
        "lengths": lengths,
        "holders": holders,
        "free": free,
        "block_size": block_size,
    }


# --- exercise 1 ----------------------------------------------------------------------------------------


def blocks_for_a_step(
    last_blocks: Sequence[int | None], lengths: Sequence[int], holders: Sequence[int], block_size: int
) -> int:
    """How many blocks a layer's append takes for one new token per request.

    last_blocks, lengths, holders: of each request's last block its number, the tokens in it and the holders;
    None, 0 and 0 if it has none.
    """
    needed = 0
    left = dict(zip(last_blocks, holders, strict=True))  # holders of a block, copies taken off
    for block, length in zip(last_blocks, lengths, strict=True):
        if block is None or length == block_size:
            needed += 1
        elif left[block] > 1:
            left[block] -= 1
            needed += 1
    return needed


def draw_step(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `blocks_for_a_step`: those of a plan, without its free blocks."""
    arguments = draw_sharers(rng)
    del arguments["free"]
    return arguments


def step_of(
    last_blocks: list[int | None],
    lengths: list[int],
    holders: list[int],
    needed: int,
    hint: str,
    block_size: int = 4,
) -> Case:
    """A case of `blocks_for_a_step`."""
    arguments = {"last_blocks": last_blocks, "lengths": lengths, "holders": holders}
    return Case({**arguments, "block_size": block_size}, needed, hint)


BLOCKS_FOR_A_STEP = Exercise(
    name="blocks_for_a_step",
    cases=(
        step_of([9, 7], [1, 3], [1, 1], 0, "Both last blocks have room and one holder: no block is taken."),
        step_of([9, 7], [1, 4], [1, 1], 1, "Behind a full block a new one begins: one block, for B."),
        step_of([9, None], [1, 0], [1, 0], 1, "A request without a block takes its first one."),
        step_of(
            [7], [2], [2], 1, "Another holder, who may be outside the batch, has block 7, too: A copies it."
        ),
        step_of(
            [7, 7],
            [2, 2],
            [2, 2],
            1,
            "A copies block 7. Then B is its last holder and writes in place: one block, not two.",
        ),
        step_of([7, 7], [2, 2], [3, 3], 2, "The third holder keeps block 7, so that both copy it."),
        step_of(
            [7, 7],
            [4, 4],
            [2, 2],
            2,
            "A full block is not copied, however many share it: each of the two takes a new block.",
        ),
        step_of(
            [7, 9, 7, 9],
            [2, 3, 2, 3],
            [2, 2, 2, 2],
            2,
            "Two families: the last holder of block 7 stays, and so does that of block 9.",
        ),
        step_of([0, 7], [1, 4], [1, 1], 1, "Block 0 is a block like any other, and has room: one, for B."),
        step_of(
            [7, 2],
            [4, 3],
            [1, 1],
            0,
            "The block size is an argument: 4 tokens leave room in a block of 8.",
            block_size=8,
        ),
    ),
    solution=blocks_for_a_step,
    draw=draw_step,
    drawn_hint="A full block or none: one. Room and more than one holder left: one, and the shared block has "
    "one holder less. Room and one holder left: none.",
)


# --- exercise 2 ----------------------------------------------------------------------------------------


def plan(
    last_blocks: Sequence[int | None],
    lengths: Sequence[int],
    holders: Sequence[int],
    free: Sequence[int],
    block_size: int,
) -> list[tuple]:
    """What `append_token_batch` does to the pool, in order: ("copy", from, to) for a copy-on-write, and
    ("write", b, block, slot) for request b's new token.

    last_blocks, lengths, holders: of each request's last block its number, the tokens in it and the holders;
    None, 0 and 0 if it has none. free: blocks to take, the next one first.
    """
    copies, writes = [], []
    unused = iter(free)
    left = dict(zip(last_blocks, holders, strict=True))  # holders of a block, copies taken off
    for b, (block, slot) in enumerate(zip(last_blocks, lengths, strict=True)):
        if block is None or slot == block_size:
            block, slot = next(unused), 0
        elif left[block] > 1:
            left[block] -= 1
            copies.append(("copy", block, next(unused)))
            block = copies[-1][2]
        writes.append(("write", b, block, slot))
    return copies + writes


def sharers(
    last_blocks: list[int | None],
    lengths: list[int],
    holders: list[int],
    seen: dict[str, Any],
    hint: str,
    block_size: int = 4,
) -> Case:
    """A case of `plan` with the free blocks 3, 5, 1 and 8, to be taken in this order."""
    arguments = {"last_blocks": last_blocks, "lengths": lengths, "holders": holders, "free": [3, 5, 1, 8]}
    return Case({**arguments, "block_size": block_size}, seen, hint)


PLAN = Exercise(
    name="plan",
    cases=(
        sharers(
            [7],
            [2],
            [1],
            {"A reads": [1, 2, 100], "blocks taken": [], "blocks copied": 0},
            "Room and one holder: one write, into the slot behind the last token. No copy, no block taken.",
        ),
        sharers(
            [9, 7, None],
            [1, 4, 0],
            [1, 1, 0],
            {
                "A reads": [1, 100],
                "B reads": [2, 3, 4, 5, 200],
                "C reads": [300],
                "blocks taken": [3, 5],
                "blocks copied": 0,
            },
            "Behind a full block, or none, the next free block is taken and slot 0 written: nothing to copy.",
        ),
        sharers(
            [7],
            [2],
            [2],
            {
                "A reads": [1, 2, 100],
                "whoever else holds block 7 finds": [1, 2],
                "blocks taken": [3],
                "blocks copied": 1,
            },
            "Another holder, who may be outside the batch, reads block 7: copy it, then write to the copy.",
        ),
        sharers(
            [7, 7],
            [2, 2],
            [2, 2],
            {"A reads": [1, 2, 100], "B reads": [1, 2, 200], "blocks taken": [3], "blocks copied": 1},
            "When one sharer has its copy, the other is the last holder of block 7: it stays there.",
        ),
        sharers(
            [7, 7],
            [4, 4],
            [2, 2],
            {
                "A reads": [1, 2, 3, 4, 100],
                "B reads": [1, 2, 3, 4, 200],
                "blocks taken": [3, 5],
                "blocks copied": 0,
            },
            "A full block is never written again, so sharing it costs nothing: ask whether it is full first.",
        ),
        sharers(
            [9, 7, 7, 7],
            [1, 2, 2, 2],
            [1, 3, 3, 3],
            {
                "A reads": [1, 100],
                "B reads": [2, 3, 200],
                "C reads": [2, 3, 300],
                "D reads": [2, 3, 400],
                "blocks taken": [3, 5],
                "blocks copied": 2,
            },
            "Three share block 7. Each copy leaves it with one holder less, and only the last one can stay.",
        ),
        sharers(
            [7, 7],
            [2, 2],
            [3, 3],
            {
                "A reads": [1, 2, 100],
                "B reads": [1, 2, 200],
                "whoever else holds block 7 finds": [1, 2],
                "blocks taken": [3, 5],
                "blocks copied": 2,
            },
            "Two of three holders are in the batch. The third keeps block 7, so neither of them can stay.",
        ),
        sharers(
            [0],
            [2],
            [1],
            {"A reads": [1, 2, 100], "blocks taken": [], "blocks copied": 0},
            "Block 0 is a block like any other; without one, a request has None.",
        ),
        sharers(
            [7, 2],
            [4, 8],
            [1, 1],
            {
                "A reads": [1, 2, 3, 4, 100],
                "B reads": [5, 6, 7, 8, 9, 10, 11, 12, 200],
                "blocks taken": [3],
                "blocks copied": 0,
            },
            "The block size is an argument: 4 tokens leave room in a block of 8, and 8 do not.",
            block_size=8,
        ),
    ),
    solution=plan,
    draw=draw_sharers,
    drawn_hint="A full block or none: take one. Room and one holder left: write in place. Room and more than "
    "one: copy, and the old block has one holder less.",
    play=play_plan,
)
