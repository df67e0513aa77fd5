"""Lesson 01: block tables whose rows are cached."""

import gc
import weakref

import torch

from labkit.engine import CacheConfig, InferenceEngine, InferenceSession
from labkit.kvcache import RebuiltBlockTables
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, Gate, small_model
from labkit.learn.gates.schedule import Invariant
from labkit.learn.gates.writes import in_place_of


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
    found, wanted = (tensor[layer_idx, row, place].item() for tensor in (table, expected))
    num_blocks = len(sessions[row].block_ids_per_layer[layer_idx])
    if place >= num_blocks:
        why = f"The request holds {num_blocks} blocks; what a row has after them is padding, and must be 0."
    elif found == wanted + engine.kv_manager.layer_offset(layer_idx):
        why = "That counts through all layers; a row counts within its layer. Subtract `offset`."
    else:
        why = (
            "Make a row again when its list has changed: it grew, its last block was replaced by a copy, or "
            "the list is another session's."
        )
    return (
        f"layer {layer_idx}, request {request.request_id} (row {row}), entry {place} names block "
        f"{found}, expected {wanted}. {why}"
    )


FRESH_ROWS = Invariant("a row names the blocks that its request holds now", stale_entry, "")

NUM_BLOCKS = 12  # of a layer
BATCHES = (  # one after the other, each of sessions by name, with their blocks in layer 0
    {"A": (0, 1, 2), "B": (3, 4)},
    {"B": (3, 4), "C": (5, 6, 7)},  # A has ended, so that B moves up, and C joins
    {"C": (5, 6, 7), "D": (8, 1, 4)},  # D has its last block from B, and as many as C
    {"E": (3, 6, 7), "D": (8, 1, 4)},  # E begins otherwise than C, and ends alike
    {"F": (3, 2, 7), "D": (8, 1, 4)},  # F begins and ends as E did
)


@torch.inference_mode()
def rows_of_others(build: Build) -> None:
    """Batches whose sessions end and join: no session has the row of another one, nor of its place, and those
    that have ended are forgotten."""
    engine = build(small_model(), dtype=torch.float32, cache=CacheConfig(4, max_blocks_per_layer=NUM_BLOCKS))
    manager, tables = engine.kv_manager, engine.decode_step.block_tables
    sessions: dict[str, InferenceSession] = {}
    made: dict[str, weakref.ref] = {}
    for batch in BATCHES:
        ended = {name: id(session) for name, session in sessions.items() if name not in batch}
        for name in ended:
            del sessions[name]
        for name, block_ids in batch.items():
            if name not in sessions:
                sessions[name] = in_place_of(ended.values(), lambda: InferenceSession(manager))
                made[name] = weakref.ref(sessions[name])
                for layer_idx, its in enumerate(sessions[name].block_ids_per_layer):
                    offset = manager.layer_offset(layer_idx)  # and no layer's list is another's
                    its.extend(offset + (i + layer_idx) % NUM_BLOCKS for i in block_ids)
                    sessions[name].num_tokens = 4 * len(block_ids)
        held = [sessions[name] for name in batch]
        table, expected = tables.build(held), RebuiltBlockTables(manager, len(batch)).build(held)
        held.clear()
        wrong = (table != expected).nonzero()
        if table.shape == expected.shape and len(wrong):
            layer_idx, row, place = wrong[0].tolist()
            for other, its in enumerate(expected[:, row]):
                if torch.equal(table[layer_idx, row], its):
                    raise BrokenContract(
                        f"each layer has rows of its own: layer {layer_idx}, row {row} is the row of layer "
                        f"{other}. A request's lists may differ from layer to layer: make each from its own "
                        "list, and write it into its own layer of the table."
                    )
            raise BrokenContract(
                f"a row belongs to one session: layer {layer_idx}, row {row}, entry {place} names block "
                f"{table[layer_idx, row, place].item()}, expected {expected[layer_idx, row, place].item()}, "
                "after another session has ended, whose place in the batch, or in memory, this one has now. "
                "Keep rows by the session itself, as `WeakKeyDictionary` does: not by its row, its `id` or "
                "its first block; and take no row of the table for right because it was once."
            )

    def still_held() -> list[str]:
        return [name for name, session in made.items() if name not in sessions and session()]

    if still_held():
        gc.collect()  # it looks at all that this process holds, so only where something may lie in a cycle
    if kept := still_held():
        raise BrokenContract(
            f"a session that has ended is forgotten: {len(kept)} of {len(made) - len(sessions)} that ended "
            "are still held, with all of their rows. Keep rows in a `WeakKeyDictionary`: a dictionary keeps "
            "its keys alive, and a server's memory fills."
        )


GATE = Gate(("block_tables",), LADDER["00"].options, (FRESH_ROWS,), costs=(rows_of_others,))
