"""Which blocks of the KV cache hold what, taken from a live engine."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from labkit.engine import InferenceEngine, InferenceSession
from labkit.kvcache import BlockHolder, CachedBlock, PrefixEntry


@dataclass(frozen=True)
class SequenceView:
    """A request or prefix-cache entry, its tokens, and the blocks in which one layer keeps them."""

    label: str
    request_id: int | None  # None for an entry of the prefix cache
    tokens: tuple[str, ...]
    block_indices: tuple[int, ...]


@dataclass(frozen=True)
class BlocksSnapshot:
    """One layer's pool at one moment: its sequences, and its blocks that are in use."""

    layer_idx: int
    block_size: int
    num_blocks: int
    sequences: tuple[SequenceView, ...]
    lengths: dict[int, int]  # by block index, in tokens; all other blocks are free


def snapshot(engine: InferenceEngine, layer_idx: int = 0) -> BlocksSnapshot:
    """What layer `layer_idx` of a live engine holds: running requests first, then prefix entries."""
    decode, manager = engine.model.tokenizer.decode, engine.kv_manager
    holders: list[tuple[str, int | None, BlockHolder, Sequence[int]]] = [
        (f"request {r.request_id}", r.request_id, session, r.token_ids)
        for r, session in engine.scheduler.running.items()
    ]
    entries: Iterable[PrefixEntry | CachedBlock] = engine.prefix_cache or ()
    holders += [(f"prefix {i}", None, entry, entry.token_ids) for i, entry in enumerate(entries)]
    lengths, sequences = {}, []
    for label, request_id, holder, token_ids in holders:
        block_ids = holder.block_ids_per_layer[layer_idx % manager.num_tables]
        for block_id in block_ids:
            info = manager.info(block_id)
            lengths[info.block_index] = info.length
        tokens = tuple(decode([t]) for t in token_ids[: holder.num_tokens])
        indices = tuple(manager.info(i).block_index for i in block_ids)
        sequences.append(SequenceView(label, request_id, tokens, indices))
    return BlocksSnapshot(
        layer_idx, manager.block_size, manager.max_blocks_per_layer, tuple(sequences), lengths
    )


def record_steps(engine: InferenceEngine, num_steps: int) -> list[BlocksSnapshot]:
    """Run `num_steps` steps; snapshots before the first and after each. Tokens are not kept."""
    snapshots = [snapshot(engine)]
    for _ in range(num_steps):
        engine.step()
        snapshots.append(snapshot(engine))
    return snapshots


def layer_tables(engine: InferenceEngine) -> dict[int, list[tuple[int, ...]]]:
    """The block tables of a live engine's running requests as they are now: by request id the blocks' places
    in the pool, for each layer or once for all layers."""
    return {r.request_id: block_places(engine, s) for r, s in engine.scheduler.running.items()}


def block_places(engine: InferenceEngine, session: InferenceSession) -> list[tuple[int, ...]]:
    """The places in the pool that each of a session's tables names, in order."""
    manager = engine.kv_manager
    return [tuple(manager.info(i).block_index for i in ids) for ids in session.block_ids_per_layer]
