"""Lesson 01: block tables whose rows are cached."""

import torch

from labkit.engine import InferenceEngine
from labkit.kvcache import RebuiltBlockTables
from labkit.ladder import LADDER
from labkit.learn.gates.gate import Gate
from labkit.learn.gates.schedule import Invariant


def stale_entry(engine: InferenceEngine) -> str:
    """The first place where a row of the block table is not what the request's list of blocks says now."""
    sessions = list(engine.scheduler.running.values())
    if not sessions:
        return ""
    rebuilt = RebuiltBlockTables(engine.kv_manager, len(sessions))
    with torch.inference_mode():
        table, expected = engine.decode_step.block_tables.build(sessions), rebuilt.build(sessions)
    if table.shape != expected.shape:
        return f"the table has the shape {tuple(table.shape)}, expected {tuple(expected.shape)}: [L, B, M]."
    wrong = (table != expected).nonzero()
    if not len(wrong):
        return ""
    layer_idx, row, place = wrong[0].tolist()
    request = list(engine.scheduler.running)[row]
    return (
        f"layer {layer_idx}, request {request.request_id} (row {row}), place {place} names block "
        f"{table[layer_idx, row, place].item()}, expected {expected[layer_idx, row, place].item()}."
    )


FRESH_ROWS = Invariant(
    "a row names the blocks that its request holds now",
    stale_entry,
    "A row must be made anew when its list has changed: it grew, its last block was replaced by a copy, or "
    "the list is another session's.",
)

GATE = Gate(("block_tables",), LADDER["00"].options, (FRESH_ROWS,))
