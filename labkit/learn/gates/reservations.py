"""Room for a step's tokens: each is in a block of its own, and what changed is told."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from labkit.engine import InferenceEngine
from labkit.learn.answers import one_line
from labkit.learn.exercise import BrokenContract
from labkit.watch.replaced import replaced

Reserve = Callable[[int, list[list[int]]], list[int]]


@contextmanager
def reservations_proven(engine: InferenceEngine) -> Iterator[tuple[()]]:
    """Inside the block, each reservation makes room in blocks that no other sequence holds, and tells which
    lists it changed. That it counts one token per sequence is left to TRUE_RECORDS."""
    manager = engine.kv_manager

    def proven(inner: Reserve) -> Reserve:
        def reserve(table_idx: int, after: list[list[int]]) -> list[int]:
            before = [list(block_ids) for block_ids in after]
            told = inner(table_idx, after)
            for place, (*_, last_id) in enumerate(after):
                last = f"block {last_id}, the last one of sequence {place},"
                if (holders := manager.refcount(last_id)) != 1:
                    raise BrokenContract(
                        f"a reserved block has one holder: {last} has {holders} holders, expected 1. A "
                        "request that appends to a shared block needs a copy first."
                    )
                if not 1 <= (counted := manager.num_tokens([last_id])) <= manager.block_size:
                    raise BrokenContract(
                        f"a reserved token is in the last block: {last} counts {counted} tokens, expected 1 "
                        f"to {manager.block_size}. Make the block ready first, then count the token in it."
                    )
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
