"""Lesson 02: its exercises, and plans of an append."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count, islice
from string import ascii_uppercase
from typing import Any

from labkit.learn.answers import one_line
from labkit.learn.exercise import BrokenContract, Exercise, answer_of

# --- plans of copies and writes, carried out on a pool that can be read --------------------------------

EMPTY = "empty"  # a slot that was never written
STEPS = '("copy", from, to) and ("write", b, block, slot)'


def play_plan(
    attempt: Callable,
    last_blocks: list[int | None],
    lengths: list[int],
    holders: list[int],
    free: list[int],
    block_size: int,
) -> dict[str, Any]:
    """Carry out an attempt's plan on a readable pool, and return what it did, by name.

    The tokens in the cache are 1, 2, 3 and so on; request A's new one is 100, B's 200. Looked at are: what
    each request reads in its last block, and in the new one if it took one; what holders outside the batch
    find in their block; the blocks taken; and how many were copied. Raises BrokenContract if the plan is not
    some copies and then one write of all new tokens, each to a place of its own.
    """
    steps = answer_of(
        attempt, last_blocks=last_blocks, lengths=lengths, holders=holders, free=free, block_size=block_size
    )
    num_requests, told = len(lengths), f"gave {one_line(repr(steps))}. "
    try:
        kinds = [kind for kind, *_ in steps]
        copies = [(source, target) for kind, source, target in steps[: kinds.count("copy")]]
        is_plan = kinds == ["copy"] * len(copies) + ["write"] * num_requests
        writes = {b: (block, slot) for _, b, block, slot in steps[len(copies) :]} if is_plan else {}
    except (TypeError, ValueError):
        writes = {}
    if set(writes) != set(range(num_requests)):
        raise BrokenContract(f"{told}Expected are copies, if any, then one write for each request: {STEPS}.")
    if len(set(writes.values())) < num_requests:
        raise BrokenContract(f"{told}Two requests write to one slot, and one token is lost.")

    pool: dict[int, list[int | str]] = {block: [EMPTY] * block_size for block in free}
    tokens = count(1)
    for block, length in zip(last_blocks, lengths, strict=True):
        if block is not None and block not in pool:
            pool[block] = [*islice(tokens, length), *[EMPTY] * (block_size - length)]
    for block, slot in [(block, 0) for copy in copies for block in copy] + [*writes.values()]:
        if block not in pool or slot not in range(block_size):
            raise BrokenContract(
                f"{told}Slot {slot} of block {block} is not there: the blocks are {sorted(pool)}, each with "
                f"slots 0 to {block_size - 1}."
            )
    for source, target in copies:
        pool[target] = pool[source][:]
    for b, (block, slot) in writes.items():
        pool[block][slot] = 100 * (b + 1)
    seen: dict[str, Any] = {}
    for b, length in enumerate(lengths):
        full = pool[last_blocks[b]] if length == block_size else []
        seen[f"{ascii_uppercase[b]} reads"] = full + pool[writes[b][0]][: length % block_size + 1]
    for block, num_inside in Counter(last_blocks).items():
        if block is not None and holders[last_blocks.index(block)] > num_inside:
            seen[f"whoever else holds block {block} finds"] = [n for n in pool[block] if n != EMPTY]
    touched = {target for _, target in copies} | {block for block, _ in writes.values()}
    return {**seen, "blocks taken": sorted(touched & set(free)), "blocks copied": len(copies)}


# --- the exercises on the blocks that a step takes, and on a plan of its copies and writes -------------


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


BLOCKS_FOR_A_STEP = Exercise(
    solution=blocks_for_a_step,
    draw=lambda rng: {name: given for name, given in draw_sharers(rng).items() if name != "free"},
    contract="A request whose last block is full, or which has none, needs one block. If the block has "
    "room and more than one holder is left, the request copies it, and the block has one holder "
    "fewer. The last holder writes in place.",
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


PLAN = Exercise(
    solution=plan,
    draw=draw_sharers,
    contract="A full block, or none: take a new one. Room and one holder left: write in place. Room and "
    "more holders: copy the block, which then has one holder fewer. All copies come before the "
    "writes.",
    play=play_plan,
)
