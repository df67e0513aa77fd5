"""The exercises of lesson 02, and the small caches whose every number can be read."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pandas as pd
import torch
from torch import Tensor

from labkit.bench import HostTime
from labkit.engine import InferenceSession
from labkit.kvcache import KVBlockManager
from labkit.learn.exercise import Case, Exercise

# --- a cache to read: one layer, one head of one number, the keys are the tokens' numbers ---------------


def readable_manager(
    num_blocks: int, kind: type[KVBlockManager] = KVBlockManager, device: torch.device | str = "cpu"
) -> KVBlockManager:
    """A pool of blocks of 4 tokens."""
    return kind(
        num_layers=1,
        num_heads=1,
        head_dim=1,
        block_size=4,
        max_blocks_per_layer=num_blocks,
        device=device,
    )


def readable_session(manager: KVBlockManager, prompt: Sequence[int]) -> InferenceSession:
    session = InferenceSession(manager)
    numbers = torch.tensor(prompt, dtype=torch.float32, device=manager.k_cache.device)
    numbers = numbers.view(1, 1, -1, 1)  # [L, H, T, D]
    session.append_prompt(numbers, numbers)
    return session


def new_token(number: int, device: torch.device) -> Tensor:
    return torch.full((1, 1), float(number), device=device)  # [H, D]


def append_one_by_one(sessions: Sequence[InferenceSession], tokens: Sequence[int]) -> None:
    """A token behind each session by its own `append_token`."""
    manager = sessions[0].kv_manager
    for session, number in zip(sessions, tokens, strict=True):
        token = new_token(number, manager.k_cache.device)
        manager.append_token(0, session.block_ids_per_layer[0], token, token)
    count_up(sessions)


def append_in_one_call(
    sessions: Sequence[InferenceSession], tokens: Sequence[int], method: str = "append_token_batch"
) -> None:
    """The same by one call of the manager's `method`."""
    manager = sessions[0].kv_manager
    batch = torch.stack([new_token(number, manager.k_cache.device) for number in tokens])  # [B, H, D]
    getattr(manager, method)(0, [session.block_ids_per_layer[0] for session in sessions], batch, batch)
    count_up(sessions)


def count_up(sessions: Sequence[InferenceSession]) -> None:
    """What the decode step does when all layers are written."""
    for session in sessions:
        session.num_tokens += 1


def reads(session: InferenceSession) -> list[int]:
    """The tokens' numbers that attention would find behind a session's block table."""
    keys, _ = session.dense_kv()
    return keys.flatten().int().tolist()


def books(sessions: Mapping[str, InferenceSession]) -> pd.DataFrame:
    """A row a session: its blocks, how many tokens the manager books in them, and which they are."""
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
    """Wrong on purpose: `append_token_batch` books a copy-on-write at once, but moves its bytes last."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self._postponed: list[tuple[int, int, int]] = []  # layer, from, to

    def _copy_on_write(self, layer_idx: int, block_id: int) -> int:
        old = self.info(block_id)
        new_id = self._allocate_block(layer_idx, start=old.start)
        self._set_length(new_id, old.length)
        self._deallocate_block(block_id)
        self._postponed.append((layer_idx, old.block_index, self.info(new_id).block_index))
        return new_id

    def _write_batch(self, *arguments: object) -> None:
        super()._write_batch(*arguments)
        for layer_idx, source, target in self._postponed:
            for cache in (self.k_cache, self.v_cache):
                cache[layer_idx, target] = cache[layer_idx, source]
        self._postponed.clear()


# --- where the batched write begins to pay --------------------------------------------------------------


def crossover(before: Sequence[HostTime], after: Sequence[HostTime]) -> float | None:
    """The batch size from which `after` costs the host less, where the straight lines between the measured
    sizes meet; None if they do not. Both are of the same sizes.
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


# --- exercises ------------------------------------------------------------------------------------------


def split_fast_slow(
    lengths: Sequence[int], holders: Sequence[int], block_size: int
) -> tuple[list[int], list[int]]:
    """Which requests of a batch take the fast path, and which do not, by their places in it.

    lengths: tokens in each request's last block, 0 if it has none. holders: of that block, 0 if it has none.
    """
    fast, slow = [], []
    for b, (length, count) in enumerate(zip(lengths, holders, strict=True)):
        (fast if count == 1 and length < block_size else slow).append(b)
    return fast, slow


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


SPLIT_FAST_SLOW = Exercise(
    name="split_fast_slow",
    cases=(
        Case(
            {"lengths": (1, 3), "holders": (1, 1), "block_size": 4},
            ([0, 1], []),
            "Both last blocks have room and one holder. Return two lists of places: the fast ones, the slow.",
        ),
        Case(
            {"lengths": (4, 3), "holders": (1, 1), "block_size": 4},
            ([1], [0]),
            "A block of 4 with 4 tokens in it is full: its request is at a boundary.",
        ),
        Case(
            {"lengths": (2, 2, 1), "holders": (1, 2, 3), "block_size": 4},
            ([0], [1, 2]),
            "A block with more than one holder must be copied before anybody writes to it.",
        ),
        Case(
            {"lengths": (0, 2), "holders": (0, 1), "block_size": 4},
            ([1], [0]),
            "A request without a block has nowhere to write, however much room 0 tokens seem to leave.",
        ),
        Case(
            {"lengths": (63, 64, 4), "holders": (1, 1, 1), "block_size": 64},
            ([0, 2], [1]),
            "The block size is an argument. Slot 63 of a block of 64 is its last, and still free.",
        ),
    ),
    solution=split_fast_slow,
)

PLAN = Exercise(
    name="plan",
    cases=(
        Case(
            {"last_blocks": (7,), "lengths": (2,), "holders": (1,), "free": (3, 5), "block_size": 4},
            [("write", 0, 7, 2)],
            "Room and one holder: one write, into the slot behind the last token. No copy, no block taken.",
        ),
        Case(
            {
                "last_blocks": (7, None),
                "lengths": (4, 0),
                "holders": (1, 0),
                "free": (3, 5),
                "block_size": 4,
            },
            [("write", 0, 3, 0), ("write", 1, 5, 0)],
            "Behind a full block, or none, the next free block is taken and slot 0 written: nothing to copy.",
        ),
        Case(
            {"last_blocks": (7,), "lengths": (2,), "holders": (2,), "free": (3, 5), "block_size": 4},
            [("copy", 7, 3), ("write", 0, 3, 2)],
            "Another holder, who may be outside the batch, reads block 7: copy it, then write to the copy.",
        ),
        Case(
            {
                "last_blocks": (7, 7),
                "lengths": (2, 2),
                "holders": (2, 2),
                "free": (3, 5),
                "block_size": 4,
            },
            [("copy", 7, 3), ("write", 0, 3, 2), ("write", 1, 7, 2)],
            "When the first sharer has its copy, the second is the last holder of block 7: it stays there.",
        ),
        Case(
            {
                "last_blocks": (9, 7, 7),
                "lengths": (1, 2, 2),
                "holders": (1, 2, 2),
                "free": (3, 5),
                "block_size": 4,
            },
            [("copy", 7, 3), ("write", 0, 9, 1), ("write", 1, 3, 2), ("write", 2, 7, 2)],
            "One write serves the whole batch, so every copy comes before the first of the writes.",
        ),
        Case(
            {
                "last_blocks": (7, 7),
                "lengths": (4, 4),
                "holders": (2, 2),
                "free": (3, 5),
                "block_size": 4,
            },
            [("write", 0, 3, 0), ("write", 1, 5, 0)],
            "A full block is never written again, so sharing it costs nothing: ask whether it is full first.",
        ),
    ),
    solution=plan,
)
