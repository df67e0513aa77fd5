"""Lesson 02: its exercise, a plan of a step's copies and writes."""

import random
from collections.abc import Sequence
from typing import Any

from labkit.learn.exercise import Exercise


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


def plan(
    last_blocks: Sequence[int | None],
    lengths: Sequence[int],
    holders: Sequence[int],
    free: Sequence[int],
    block_size: int,
) -> list[tuple]:
    """What `append_token_batch` does to the pool, in the order of the requests: ("copy", from, to) for each
    copy-on-write, and then ("write", b, block, slot) for each request's new token.

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


PLAN = Exercise(
    solution=plan,
    draw=draw_sharers,
    contract="A full block, or none: take a new one. Room and one holder left: write in place. Room and "
    "more holders: copy the block, which then has one holder fewer. All copies come before the "
    "writes, and all go by the order of the requests.",
)
