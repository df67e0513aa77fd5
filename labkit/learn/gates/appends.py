"""Trials of what appends a step's keys and values: where it writes, how often, and what a failure leaves."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.engine import CacheConfig, InferenceEngine, InferenceSession, SamplingParams
from labkit.engine.request import Request
from labkit.engine.step.host import DecodeStep
from labkit.errors import OutOfBlocksError
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.cached import TRUE_RECORDS
from labkit.learn.gates.gate import Build, small_model
from labkit.watch import PlantedError, planted_failure, replaced

# In blocks of 4: two that share a partly filled block, one with room for a token, one whose block is full.
PROMPTS = ((1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6), (7, 8, 9), (1, 2, 3, 4))
NUM_TOKENS = 10  # of each: every last block is filled, and another after it

Running = list[tuple[Request, InferenceSession]]


def started(build: Build) -> InferenceEngine:
    """A small engine in which all of PROMPTS run, each with its first token; no step has decoded yet."""
    engine = build(small_model(), dtype=torch.float32, cache=CacheConfig(block_size=4))
    for prompt in PROMPTS:
        engine.add_request(prompt, SamplingParams(NUM_TOKENS, stop_on_eos=False))
        engine.step()  # one at a time, so that a prompt finds those before it in the cache
    return engine


# --- where ------------------------------------------------------------------------------------------------

ONE_WRITE = "Make every block ready first, copies included, then write all rows by one `write_batch`."
NO_WRITE = "Collect the block and slot of each request, then write them all by one `write_batch`."


def own_slots(build: Build) -> None:
    """Every write goes to the slot behind a request's last token, in a block that no other request holds; a
    step has one batched write per layer at most, and one if each last block has room; records are true after
    it.
    """
    engine = started(build)
    manager = engine.kv_manager
    while engine.has_work:
        running = list(engine.scheduler.running.items())
        takes_block = any(session.next_token_takes_block for _, session in running)
        written: dict[int, list[int]] = {i: [] for i in range(manager.num_layers)}  # rows of each write
        no_write = "" if takes_block else hint_for_no_write(engine.decode_step.kv_append, running)
        with replaced(manager.kv_write, "write", partial(_watched, engine, running, written)):
            engine.step()
        for layer_idx, counts in written.items():
            if len(counts) > 1 or not (takes_block or counts):
                kind = ", some of which take a block" if takes_block else " whose last blocks all have room"
                raise BrokenContract(
                    f"one write per layer and step: layer {layer_idx} had {len(counts)} batched writes in a "
                    f"step of {len(running)} requests{kind}, expected 1. {ONE_WRITE if counts else no_write}"
                )
            if not takes_block and sum(counts) < len(running):
                raise BrokenContract(
                    f"one write per layer and step: layer {layer_idx}'s batched write had {sum(counts)} of "
                    f"{len(running)} requests whose last blocks all have room, expected all. {no_write}"
                )
        if wrong := TRUE_RECORDS.off(engine):
            raise BrokenContract(f"{TRUE_RECORDS.name}: {wrong} {TRUE_RECORDS.hint}")


def hint_for_no_write(kv_append: object, running: Running) -> str:
    """What to try if these requests, whose last blocks all have room and one holder, are written one by
    one."""
    is_fast = getattr(kv_append, "is_fast", None)  # the reader's, in lesson 02
    if is_fast is None:
        return NO_WRITE
    if all(is_fast(block_ids) for _, session in running for block_ids in session.block_ids_per_layer):
        return f"`is_fast` is right about them, so the gap is in `write`. {NO_WRITE}"
    return "Each of these blocks has room and one holder, so its next token is fast: `is_fast` must say True."


def _watched(
    engine: InferenceEngine,
    running: Running,
    written: dict[int, list[int]],
    inner: Callable[..., str],
) -> Callable[..., str]:
    manager, kv_append = engine.kv_manager, engine.decode_step.kv_append

    def write(k_cache_layer: Tensor, *arguments: Any) -> str:
        layer_idx = (k_cache_layer.storage_offset() // manager.k_cache.stride(0)) % manager.num_layers
        rows, blocks, slots = (list(map(int, indices)) for indices in arguments[-3:])
        written[layer_idx].append(len(rows))
        counts = len(rows), len(blocks), len(slots)
        if len(set(counts)) > 1 or not set(rows) <= set(range(len(running))):
            raise BrokenContract(
                f"a write names rows of the batch, each with block and slot: layer {layer_idx} was written "
                f"with batch_idx {rows}, block_idx {blocks} and pos {slots}, "
                f"expected one of each for some of the rows 0 to {len(running) - 1}."
            )
        for b, block_index, slot in zip(rows, blocks, slots, strict=True):
            request, session = running[b]
            if wrong := _wrong_slot(session, layer_idx, block_index, slot, hasattr(kv_append, "is_fast")):
                raise BrokenContract(
                    "a token is written after its request's last one, into a block of its own: "
                    f"layer {layer_idx}, request {request.request_id} (row {b}): {wrong}"
                )
        return inner(k_cache_layer, *arguments)

    return write


def _wrong_slot(
    session: InferenceSession, layer_idx: int, block_index: int, slot: int, has_fast_path: bool
) -> str:
    manager = session.kv_manager
    offset = manager.layer_offset(layer_idx)
    block_id = offset + block_index
    last_id = session.block_ids_per_layer[layer_idx][-1]
    own_slot = session.num_tokens % manager.block_size  # 0 where a new block begins
    if slot >= manager.block_size and not own_slot:
        hint = _hint_for_not_ready("The block is full", "takes a new one", has_fast_path)
        return (
            f"slot {slot} of block {block_id} was written, but a block has slots 0 to "
            f"{manager.block_size - 1}. {hint}"
        )
    if (holders := manager.block_refcounts.get(block_id, 0)) > 1:
        hint = _hint_for_not_ready("Others hold this block", "copies it", has_fast_path)
        return f"block {block_id} was written while it had {holders} holders, expected 1. {hint}"
    if (recorded := manager.info(last_id).block_index) != (own := last_id - offset):
        return (
            f"the record of block {last_id} has block_index {recorded}, expected {own}. Every block has "
            "a record of its own, and so has a copy."
        )
    if (slot, block_id) != (own_slot, last_id):
        return (
            f"slot {slot} of block {block_id} was written, expected slot {own_slot} of block {last_id}. The "
            "slot is the number of tokens in the request's last block before this one is counted, and "
            "`block_idx` has the `block_index` of the block's record, its place in the layer. Row b, block "
            "b and slot b belong to one request."
        )
    return ""


def _hint_for_not_ready(reason: str, does: str, has_fast_path: bool) -> str:
    readied = f"`ready_block` {does} before the write."
    if has_fast_path:  # lesson 02's first step does without `ready_block`
        return f"{reason}, so the token is slow: `is_fast` must say False. From step 2 on, {readied}"
    return f"{reason}: {readied}"


# --- failures ---------------------------------------------------------------------------------------------


COUNTED = "a token is counted when it is written"
MARK = 7.0  # every new key and value of a step that fails


@torch.inference_mode()
def failed_write(build: Build) -> None:
    """When a layer's write fails, that reaches the caller, no token is counted that is not written, and what
    was made ready can be undone.
    """
    engine = started(build)
    engine.step()  # by now some last blocks have room, and one has none
    manager = engine.kv_manager
    for failed in range(manager.num_layers):
        with suppress(PlantedError), planted_failure(manager.kv_write, "write", failed):
            append_marks(engine)
            raise BrokenContract(
                f"{COUNTED}: layer {failed}'s write raised, and the append did not. Let the error through: "
                "the engine must learn of it to undo the step."
            )
        check_counted(engine, f"layer {failed}'s write had raised")
        undo(engine)


@torch.inference_mode()
def pool_runs_out(build: Build) -> None:
    """When no block is free for a request in the middle of the batch, no token is counted that is not
    written."""
    engine = started(build)
    engine.step()  # by now those before the one whose last block is full have room
    manager = engine.kv_manager
    taken = [manager.allocate_block(0, start=0) for _ in range(manager.num_free(0))]
    with suppress(OutOfBlocksError):
        append_marks(engine)
        raise BrokenContract(
            f"{COUNTED}: layer 0 had no free block for a request whose last one is full, and the append did "
            "not raise. Let the error through: the engine must learn of it to undo the step."
        )
    check_counted(engine, "layer 0 had run out of blocks in the middle of the batch")
    for block_id in taken:
        manager.deallocate_block(block_id)
    undo(engine)


def append_marks(engine: InferenceEngine) -> None:
    """Append a token to each running request, whose keys and values are MARK."""
    manager, step = engine.kv_manager, engine.decode_step
    assert isinstance(step, DecodeStep), "rungs 02 and 05 keep their state on the host"
    sessions = list(engine.scheduler.running.values())
    _, _, num_heads, _, head_dim = manager.k_cache.shape
    new = [manager.k_cache.new_full((len(sessions), num_heads, head_dim), MARK)] * manager.num_layers
    step.kv_append.append(sessions, new, new)


def check_counted(engine: InferenceEngine, when: str) -> None:
    """Raise BrokenContract if a token is counted behind a request's own that was not written."""
    manager = engine.kv_manager
    for request, session in engine.scheduler.running.items():
        for layer_idx, block_ids in enumerate(session.block_ids_per_layer):
            counted = manager.num_tokens(block_ids)
            is_written = counted == session.num_tokens + 1 and all(
                (stored[:, -1] == MARK).all() for stored in manager.dense_kv(layer_idx, block_ids)
            )
            if counted != session.num_tokens and not is_written:
                raise BrokenContract(
                    f"{COUNTED}: after {when}, layer {layer_idx} counted {counted} "
                    f"tokens for request {request.request_id}, expected {session.num_tokens}. Count "
                    "after the write: a length is never ahead of the data."
                )


def undo(engine: InferenceEngine) -> None:
    """Take back what was made ready, and counted, behind the running requests' tokens. Raises BrokenContract
    if anything of it stays.
    """
    for session in engine.scheduler.running.values():
        session.roll_back()
    try:
        engine.check_integrity()
    except AssertionError as error:
        raise BrokenContract(f"a failed step can be undone: {error}.") from error
