"""Lesson 02: the exercises, and caches so small that each of their numbers can be read."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count, islice, pairwise
from string import ascii_uppercase
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from labkit.engine import InferenceSession
from labkit.kvcache import KVBlockManager
from labkit.learn.answers import one_line, plain
from labkit.learn.exercise import BrokenContract, Case, Exercise, answer_of
from labkit.results import HostTime

# --- a cache to read: one layer, one head of one number, the keys are the tokens' numbers ---------------


def readable_manager(
    num_blocks: int, kind: type[KVBlockManager] = KVBlockManager, device: torch.device | str = "cpu"
) -> KVBlockManager:
    """A block manager of one layer and one head of one number, with blocks of 4 tokens: a token's key is its
    number."""
    return kind(
        num_layers=1,
        num_heads=1,
        head_dim=1,
        block_size=4,
        max_blocks_per_layer=num_blocks,
        device=device,
    )


def readable_session(manager: KVBlockManager, prompt: Sequence[int]) -> InferenceSession:
    """A session with this prompt in a readable cache: the key and the value of each token are its number."""
    session = InferenceSession(manager)
    numbers = torch.tensor(prompt, dtype=torch.float32, device=manager.k_cache.device)
    numbers = numbers.view(1, 1, -1, 1)  # [L, H, T, D]
    session.append_prompt(numbers, numbers)
    return session


def new_token(number: int, device: torch.device) -> Tensor:
    """The key or value [H, D] = [1, 1] of a token of a readable cache: its number."""
    return torch.full((1, 1), float(number), device=device)  # [H, D]


def append_one_by_one(sessions: Sequence[InferenceSession], tokens: Sequence[int]) -> None:
    """Append a token behind each session of a readable cache, one call of `append_token` per session."""
    manager = sessions[0].kv_manager
    for session, number in zip(sessions, tokens, strict=True):
        token = new_token(number, manager.k_cache.device)
        manager.append_token(0, session.block_ids_per_layer[0], token, token)
    count_up(sessions)


def append_in_one_call(
    sessions: Sequence[InferenceSession], tokens: Sequence[int], method: str = "append_token_batch"
) -> None:
    """Append a token behind each session of a readable cache by one call of the manager's `method`."""
    manager = sessions[0].kv_manager
    batch = torch.stack([new_token(number, manager.k_cache.device) for number in tokens])  # [B, H, D]
    getattr(manager, method)(0, [session.block_ids_per_layer[0] for session in sessions], batch, batch)
    count_up(sessions)


def count_up(sessions: Sequence[InferenceSession]) -> None:
    """Count the new token in each session, as the decode step does when all layers are written."""
    for session in sessions:
        session.num_tokens += 1


def reads(session: InferenceSession) -> list[int]:
    """The numbers of the tokens that attention would find behind a session's block table."""
    keys, _ = session.dense_kv()
    return keys.flatten().int().tolist()


def session_table(sessions: Mapping[str, InferenceSession]) -> pd.DataFrame:
    """A row per session, by name: its blocks, the tokens that the manager counts in them and that the session
    counts, and the numbers that attention reads."""
    rows = {
        name: {
            "blocks": str(session.block_ids_per_layer[0]),
            "tokens booked": session.kv_manager.num_tokens(session.block_ids_per_layer[0]),
            "tokens the session counts": session.num_tokens,
            "reads": str(reads(session)),
        }
        for name, session in sessions.items()
    }
    return pd.DataFrame(rows).T


class CopiesAfterTheWrite(KVBlockManager):
    """A manager that is wrong on purpose: `append_token_batch` records a copy-on-write at once, but moves its
    bytes after the write."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self._postponed: list[tuple[int, int, int]] = []  # layer, from, to

    def copy_on_write(self, layer_idx: int, block_id: int) -> int:
        """Give the sequence a block of its own in place of a shared one, and put off moving the bytes.
        Returns the new block's id."""
        old = self.info(block_id)
        new_id = self.allocate_block(layer_idx, start=old.start)
        self.set_length(new_id, old.length)
        self.deallocate_block(block_id)
        self._postponed.append((layer_idx, old.block_index, self.info(new_id).block_index))
        return new_id

    def write_batch(self, *arguments: object) -> None:
        """Write the batch, and then move the bytes of the copies that were put off."""
        super().write_batch(*arguments)
        for layer_idx, source, target in self._postponed:
            for cache in (self.k_cache, self.v_cache):
                cache[layer_idx, target] = cache[layer_idx, source]
        self._postponed.clear()


# --- where the batched write begins to pay --------------------------------------------------------------


def crossover(before: Sequence[HostTime], after: Sequence[HostTime]) -> float | None:
    """The batch size from which `after` costs the host less than `before`: where the straight lines between
    the measured sizes cross; None if they do not.

    Both were measured at the same batch sizes, in any order.
    """

    def by_size(times: Sequence[HostTime]) -> list[HostTime]:
        return sorted(times, key=lambda time: time.batch_size)

    lost = [
        (b.batch_size, a.step_us - b.step_us) for b, a in zip(by_size(before), by_size(after), strict=True)
    ]
    for (size, more), (next_size, less) in pairwise(lost):
        if more > 0 >= less:
            return size + (next_size - size) * more / (more - less)
    return None


# --- exercise 1 ----------------------------------------------------------------------------------------


def split_fast_slow(
    lengths: Sequence[int], holders: Sequence[int], block_size: int
) -> tuple[list[int], list[int]]:
    """The requests of a batch that take the fast path, and those that do not, by their places in it.

    lengths: tokens in each request's last block, 0 if it has none. holders: how many hold that block, 0 if
    there is none.
    """
    fast, slow = [], []
    for b, (length, num_holders) in enumerate(zip(lengths, holders, strict=True)):
        (fast if num_holders == 1 and length < block_size else slow).append(b)
    return fast, slow


def draw_lengths(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `split_fast_slow`: a batch of any size, an empty one too; many of its blocks are
    full, shared or both."""
    block_size = rng.choice((1, 2, 3, 4, 16, 64))
    num_full = block_size * rng.randrange(2)
    lengths = [
        rng.choice((0, num_full, block_size, rng.randint(1, block_size))) for _ in range(rng.randrange(7))
    ]
    holders = [0 if length == 0 else rng.choice((1, 1, 2, 3)) for length in lengths]
    return {"lengths": lengths, "holders": holders, "block_size": block_size}


SPLIT_FAST_SLOW = Exercise(
    name="split_fast_slow",
    cases=(
        Case(
            {"lengths": [1, 3], "holders": [1, 1], "block_size": 4},
            ([0, 1], []),
            "Both last blocks have room and one holder. Return two lists of places: the fast ones, the slow.",
        ),
        Case(
            {"lengths": [4, 3], "holders": [1, 1], "block_size": 4},
            ([1], [0]),
            "A block of 4 with 4 tokens in it is full: its request is at a boundary.",
        ),
        Case(
            {"lengths": [2, 2, 1], "holders": [1, 2, 3], "block_size": 4},
            ([0], [1, 2]),
            "A block with more than one holder must be copied before anybody writes to it.",
        ),
        Case(
            {"lengths": [0, 2], "holders": [0, 1], "block_size": 4},
            ([1], [0]),
            "A request without a block has nowhere to write, however much room 0 tokens seem to leave.",
        ),
        Case(
            {"lengths": [63, 64, 4], "holders": [1, 1, 1], "block_size": 64},
            ([0, 2], [1]),
            "The block size is an argument. Slot 63 of a block of 64 is its last, and still free.",
        ),
        Case(
            {"lengths": [1, 4], "holders": [1, 2], "block_size": 4},
            ([0], [1]),
            "A block can be both, full and shared: its request is slow, once.",
        ),
        Case(
            {"lengths": [2, 0, 4, 1], "holders": [2, 0, 1, 1], "block_size": 4},
            ([3], [0, 1, 2]),
            "Both lists are in the order of the batch, for whatever reason a request is slow.",
        ),
    ),
    solution=split_fast_slow,
    draw=draw_lengths,
    drawn_hint="Fast: one holder, and fewer tokens than the block has slots. Slow: all others.",
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
