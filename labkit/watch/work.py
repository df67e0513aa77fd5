"""What steps ask of the block manager, the model and the device, counted."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from labkit.engine import InferenceEngine, InferenceSession
from labkit.watch.launches import device_step_of
from labkit.watch.replaced import noting, replaced

COUNTS = (
    "calls of reserve_token_batch",
    "lists of block ids looked at",
    "blocks taken, each with record and count",
    "copies-on-write decided",
    "bytes of keys and values copied",
    "rows of block tables sent",
    "bytes sent to the device",
)


@contextmanager
def count_work(engine: InferenceEngine) -> Iterator[Counter[str]]:
    """Count what an engine's steps ask of the block manager and send inside the block, by `COUNTS`.

    Raises ValueError for an engine that keeps no state on the device (up to rung 05).
    """
    manager, slots = engine.kv_manager, device_step_of(engine).slots
    counts: Counter[str] = Counter()

    def on_reserve(_: int, block_ids_list: Sequence[list[int]]) -> None:
        counts[COUNTS[0]] += 1
        counts[COUNTS[1]] += len(block_ids_list)

    def on_allocate(*_: int, **__: int) -> None:
        counts[COUNTS[2]] += 1

    def on_copy(table_idx: int, _: int) -> None:
        counts[COUNTS[3]] += 1
        counts[COUNTS[4]] += 2 * manager.k_cache[manager.layers_of(table_idx), :1].nbytes

    def on_rows(sessions: Sequence[InferenceSession]) -> None:
        counts[COUNTS[5]] += sum(len(session.block_ids_per_layer) for session in sessions)

    def on_send(numbers: Tensor, *_: object) -> None:
        counts[COUNTS[6]] += numbers.nbytes

    with (
        replaced(manager, "reserve_token_batch", noting(on_reserve)),
        replaced(manager, "allocate_block", noting(on_allocate)),
        replaced(manager, "copy_on_write", noting(on_copy)),
        replaced(slots, "send_rows", noting(on_rows)),
        replaced(slots.staging, "send", noting(on_send)),
    ):
        yield counts
