"""Lesson 02: its exercises, and plans of an append."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count, islice
from string import ascii_uppercase
from typing import Any

from labkit.learn.answers import one_line, plain
from labkit.learn.exercise import BrokenContract, Exercise, answer_of

# --- plans of copies and writes, carried out on a pool that can be read --------------------------------

OPERANDS = {"copy": ("from_block", "to_block"), "write": ("b", "block", "slot")}  # by operation
EMPTY = "empty"  # a slot that was never written
Pool = dict[int, list[int | str]]  # by block: the token in each slot


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
    find in their block; the blocks taken; and how many were copied. Raises BrokenContract if the plan cannot
    be carried out as copies and one write.
    """
    answer = answer_of(
        attempt, last_blocks=last_blocks, lengths=lengths, holders=holders, free=free, block_size=block_size
    )
    pool = pool_before(last_blocks, lengths, free, block_size)
    try:
        copies, writes = copies_and_writes(answer, len(last_blocks), pool)
    except BrokenContract as broken:
        raise BrokenContract(f"gave {one_line(repr(answer))}. {broken}") from None
    for source, target in copies:
        pool[target] = pool[source][:]
    for b, (block, slot) in writes.items():
        pool[block][slot] = 100 * (b + 1)

    seen: dict[str, Any] = {}
    for b, length in enumerate(lengths):
        block, _ = writes[b]
        full = pool[last_blocks[b]] if length == block_size else []
        seen[f"{letter(b)} reads"] = full + pool[block][: length % block_size + 1]
    for block, num_inside in Counter(last_blocks).items():
        if block is not None and holders[last_blocks.index(block)] > num_inside:
            seen[f"whoever else holds block {block} finds"] = [n for n in pool[block] if n != EMPTY]
    touched = {target for _, target in copies} | {block for block, _ in writes.values()}
    return {**seen, "blocks taken": sorted(touched & set(free)), "blocks copied": len(copies)}


def letter(b: int) -> str:
    """The name of request b: A, B, C, ..."""
    return ascii_uppercase[b]


def pool_before(
    last_blocks: Sequence[int | None], lengths: Sequence[int], free: Sequence[int], block_size: int
) -> Pool:
    """The pool before a plan is carried out: the tokens 1, 2, 3, ... in the last blocks, and empty free
    blocks."""
    pool: Pool = {block: [EMPTY] * block_size for block in free}
    tokens = count(1)
    for block, length in zip(last_blocks, lengths, strict=True):
        if block is not None and block not in pool:
            pool[block] = [*islice(tokens, length), *[EMPTY] * (block_size - length)]
    return pool


def copies_and_writes(
    answer: Any, num_requests: int, pool: Pool
) -> tuple[list[tuple[int, int]], dict[int, tuple[int, int]]]:
    """The copies of a plan, and the block and slot of each request's write. The plan and its operations can
    be any sequences. Raises BrokenContract if it is not some copies and then one write of all new tokens."""
    operations = plain(answer)
    if not isinstance(operations, tuple) or any(isinstance(item, str) for item in operations):
        raise BrokenContract("Return a list of operations, such as [('write', 0, 7, 2)], even of one.")
    copies: list[tuple[int, int]] = []
    writes: dict[int, tuple[int, int]] = {}
    for operation in operations:
        name, *operands = checked_operation(operation, num_requests, pool)
        if name == "write":
            b, *place = operands
            check_alone(b, tuple(place), writes)
            writes[b] = tuple(place)
        elif writes:
            raise BrokenContract(
                "One write serves the whole batch, so every copy comes before the first of the writes."
            )
        else:
            copies.append(tuple(operands))
    for b in range(num_requests):
        if b not in writes:
            raise BrokenContract(f"The new token of {letter(b)}, request {b}, is never written.")
    return copies, writes


def checked_operation(operation: Any, num_requests: int, pool: Pool) -> tuple:
    """The operation of a plan, as it is. Raises BrokenContract if its name, its operands or the places that
    they name do not exist."""
    name, *operands = operation if isinstance(operation, tuple) and operation else (operation,)
    names = OPERANDS.get(name) if isinstance(name, str) else None
    if names is None:
        raise BrokenContract(f"{operation!r} is neither a 'copy' nor a 'write'.")
    if len(operands) != len(names) or not all(type(n) is int for n in operands):
        raise BrokenContract(f"It takes ('{name}', {', '.join(names)}), whole numbers, not {operation!r}.")
    for what, number in zip(names, operands, strict=True):
        if what == "b" and not 0 <= number < num_requests:
            raise BrokenContract(f"{operation!r}: there is no request {number} in a batch of {num_requests}.")
        if what.endswith("block") and number not in pool:
            raise BrokenContract(
                f"{operation!r}: block {number} is no last block of the batch, and not free."
            )
        if what == "slot" and not 0 <= number < len(pool[operands[1]]):
            raise BrokenContract(f"{operation!r}: a block of {len(pool[operands[1]])} has no slot {number}.")
    return operation


def check_alone(b: int, place: tuple[int, int], writes: Mapping[int, tuple[int, int]]) -> None:
    """Raise BrokenContract if request b is written twice, or if another request is written to the same
    (block, slot)."""
    if b in writes:
        raise BrokenContract(f"{letter(b)}, request {b}, has one new token, and two writes.")
    for other, taken in writes.items():
        if taken == place:
            raise BrokenContract(
                f"{letter(other)} and {letter(b)} both write to slot {place[1]} of block {place[0]}, and one "
                "token is lost. A block that is written must have one holder."
            )


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


def draw_step(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `blocks_for_a_step`: those of a plan, without its free blocks."""
    arguments = draw_sharers(rng)
    del arguments["free"]
    return arguments


BLOCKS_FOR_A_STEP = Exercise(
    name="blocks_for_a_step",
    solution=blocks_for_a_step,
    draw=draw_step,
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
    name="plan",
    solution=plan,
    draw=draw_sharers,
    contract="A full block, or none: take a new one. Room and one holder left: write in place. Room and "
    "more holders: copy the block, which then has one holder fewer. All copies come before the "
    "writes.",
    play=play_plan,
)
