"""Lesson 02: plans of copies and writes, carried out on a pool that can be read."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count, islice
from string import ascii_uppercase
from typing import Any

from labkit.learn.answers import one_line, plain
from labkit.learn.exercise import BrokenContract, answer_of

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
