"""Room for a step's tokens: one is counted per sequence, in a block of its own, and what changed is told."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from labkit.engine import InferenceEngine
from labkit.kvcache import KVBlockManager
from labkit.learn.answers import one_line
from labkit.learn.exercise import BrokenContract
from labkit.watch.replaced import replaced

Reserve = Callable[[int, list[list[int]]], list[int]]


@contextmanager
def reservations_proven(engine: InferenceEngine) -> Iterator[tuple[()]]:
    """Inside the block, each reservation makes room for one token per sequence, in a block of its own, and
    tells which lists it changed."""
    manager = engine.kv_manager

    def proven(inner: Reserve) -> Reserve:
        def reserve(table_idx: int, after: list[list[int]]) -> list[int]:
            before = [list(block_ids) for block_ids in after]
            nums_tokens = [manager.num_tokens(block_ids) for block_ids in after]
            told = inner(table_idx, after)
            for place, (block_ids, num_tokens) in enumerate(zip(after, nums_tokens, strict=True)):
                check_reserved(manager, place, block_ids, num_tokens)
            pairs = zip(before, after, strict=True)
            changed = [b for b, (held, block_ids) in enumerate(pairs) if held != block_ids]
            if not isinstance(told, list) or {*map(repr, told)} != {*map(repr, changed)}:
                raise BrokenContract(
                    f"a reservation tells which lists changed: {one_line(repr(told))} is returned, expected "
                    f"{changed}: of the lists {before} became {after}. These are indices into the batch. A "
                    "block that was replaced by its copy is a change, too: the device must be told."
                )
            return told

        return reserve

    with replaced(manager, "reserve_token_batch", proven):
        yield ()


def check_reserved(manager: KVBlockManager, place: int, block_ids: list[int], num_tokens: int) -> None:
    """Raise BrokenContract if a sequence of `num_tokens` has no room for one more, counted once."""
    counted = manager.num_tokens(block_ids)
    if counted != num_tokens + 1:
        raise BrokenContract(
            f"a reservation counts one token: sequence {place} had {num_tokens} in its blocks and has "
            f"{counted}, expected {num_tokens + 1}. A token has the same place in every layer, so it counts "
            "once."
        )
    if manager.refcount(block_ids[-1]) != 1:
        raise BrokenContract(
            f"a reserved block has one holder: block {block_ids[-1]}, the last one of sequence {place}, has "
            f"{manager.refcount(block_ids[-1])} holders, expected 1. A request that appends to a shared "
            "block needs a copy first."
        )
    in_last = manager.num_tokens(block_ids[-1:])
    if not 1 <= in_last <= manager.block_size:
        raise BrokenContract(
            f"a reserved token is in the last block: that of sequence {place}, {block_ids[-1]}, counts "
            f"{in_last} tokens, expected 1 to {manager.block_size}. Make the block ready first, then count "
            "the token in it."
        )
