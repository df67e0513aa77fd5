"""Lesson 01: block tables whose rows are cached."""

from collections.abc import Mapping

import torch

from labkit.engine import CacheConfig, InferenceEngine, InferenceSession
from labkit.kvcache import RebuiltBlockTables
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, Gate, small_model
from labkit.learn.gates.schedule import Invariant


@torch.inference_mode()
def wrong_entry(engine: InferenceEngine, sessions: Mapping[str, InferenceSession]) -> str:
    """The first place where a row of the block table is not what its session's list of blocks says now. The
    sessions come by what they are called, in the order of the rows."""
    held = list(sessions.values())
    if not held:
        return ""
    table = engine.decode_step.block_tables.build(held)
    expected = RebuiltBlockTables(engine.kv_manager, len(held)).build(held)
    if table.shape != expected.shape:
        return f"the table has the shape {tuple(table.shape)}, expected {tuple(expected.shape)}: [L, B, M]."
    for layer_idx, row, place in (table != expected).nonzero().tolist():
        return (
            f"layer {layer_idx}, {list(sessions)[row]} (row {row}), entry {place} names block "
            f"{table[layer_idx, row, place]}, expected {expected[layer_idx, row, place]}."
        )
    return ""


def stale_entry(engine: InferenceEngine) -> str:
    """What `wrong_entry` says of the running requests."""
    running = engine.scheduler.running.items()
    return wrong_entry(engine, {f"request {each.request_id}": session for each, session in running})


FRESH_ROWS = Invariant(
    "a row names the blocks that its request holds now",
    stale_entry,
    "Make a row again when its list has changed: it grew, its last block was replaced by a copy, or the list "
    "is another session's.",
)

NUM_BLOCKS = 12  # of a layer
BATCHES = (  # one after the other, each of sessions by name, with their blocks in layer 0
    {"A": (0, 1, 2), "B": (3, 4)},
    {"B": (3, 4), "C": (5, 6, 7)},  # A has ended, so that B moves up, and C joins
    {"C": (5, 6, 7), "D": (8, 1, 4)},  # D has its last block from B, and as many as C
    {"E": (3, 6, 7), "D": (8, 1, 4)},  # E begins otherwise than C, and ends alike
)


def rows_of_others(build: Build) -> None:
    """Batches whose sessions end and join, and whose lists differ from layer to layer: no session has the row
    of another one, and no layer that of another layer."""
    engine = build(small_model(), dtype=torch.float32, cache=CacheConfig(4, max_blocks_per_layer=NUM_BLOCKS))
    manager = engine.kv_manager
    sessions: dict[str, InferenceSession] = {}
    for batch in BATCHES:
        for name, block_ids in batch.items():
            if name in sessions:
                continue
            sessions[name] = InferenceSession(manager)
            for layer_idx, its in enumerate(sessions[name].block_ids_per_layer):
                offset = manager.layer_offset(layer_idx)
                its.extend(offset + (i + layer_idx) % NUM_BLOCKS for i in block_ids)
                sessions[name].num_tokens = 4 * len(block_ids)
        if wrong := wrong_entry(engine, {f"session {name}": sessions[name] for name in batch}):
            raise BrokenContract(
                f"a row belongs to one session, and to one of its layers: {wrong} A session may have the "
                "place in the batch of one that has ended, and its lists may differ from layer to layer. "
                "Keep rows by the session itself and by layer, and write each into its own layer."
            )


GATE = Gate(("block_tables",), LADDER["00"].options, (FRESH_ROWS,), costs=(rows_of_others,))
