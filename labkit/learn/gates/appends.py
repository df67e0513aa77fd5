"""Trials of what appends a step's keys and values: where it writes, how often, and what a failure leaves."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor

from labkit.engine import CacheConfig, InferenceEngine, InferenceSession, SamplingParams
from labkit.engine.request import Request
from labkit.engine.step.host import DecodeStep
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


def own_slots(build: Build) -> None:
    """Every write goes to the slot behind a request's last token, in a block that no other request holds; a
    step in which each last block has room writes once per layer; records are true after it.
    """
    engine = started(build)
    manager = engine.kv_manager
    while engine.has_work:
        running = list(engine.scheduler.running.items())
        takes_block = any(session.next_token_takes_block for _, session in running)
        num_written: Counter[int] = Counter()
        with replaced(manager.kv_write, "write", partial(_watched, engine, running, num_written)):
            engine.step()
        for layer_idx in range(manager.num_layers):
            if not takes_block and num_written[layer_idx] != 1:
                raise BrokenContract(
                    f"one write per layer and step: layer {layer_idx} had {num_written[layer_idx]} batched "
                    f"writes in a step of {len(running)} requests whose last blocks all have room, expected "
                    "1. Collect the block and slot of each request, then write them all by one "
                    "`write_batch`."
                )
        if wrong := TRUE_RECORDS.off(engine):
            raise BrokenContract(f"{TRUE_RECORDS.name}: {wrong} {TRUE_RECORDS.hint}")


def _watched(
    engine: InferenceEngine, running: Running, num_written: Counter[int], inner: Callable[..., str]
) -> Callable[..., str]:
    manager = engine.kv_manager

    def write(
        k_cache_layer: Tensor,
        v_cache_layer: Tensor,
        key_new: Tensor,
        value_new: Tensor,
        batch_idx: Sequence[int],
        block_idx: Sequence[int],
        pos: Sequence[int],
    ) -> str:
        layer_idx = (k_cache_layer.storage_offset() // manager.k_cache.stride(0)) % manager.num_layers
        num_written[layer_idx] += 1
        rows, blocks, slots = (list(map(int, indices)) for indices in (batch_idx, block_idx, pos))
        counts = len(rows), len(blocks), len(slots)
        if len(set(counts)) > 1 or not set(rows) <= set(range(len(running))):
            raise BrokenContract(
                f"a write names rows of the batch, each with block and slot: layer {layer_idx} was written "
                f"with batch_idx {rows}, block_idx {blocks} and pos {slots}, "
                f"expected one of each for some of the rows 0 to {len(running) - 1}."
            )
        for b, block_index, slot in zip(rows, blocks, slots, strict=True):
            request, session = running[b]
            if wrong := _wrong_slot(session, layer_idx, block_index, slot):
                raise BrokenContract(
                    "a token is written behind its request's last one, into a block of its own: "
                    f"layer {layer_idx}, request {request.request_id} (row {b}): {wrong}"
                )
        return inner(k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos)

    return write


def _wrong_slot(session: InferenceSession, layer_idx: int, block_index: int, slot: int) -> str:
    manager = session.kv_manager
    offset = manager.layer_offset(layer_idx)
    block_id = offset + block_index
    last_id = session.block_ids_per_layer[layer_idx][-1]
    own_slot = session.num_tokens % manager.block_size  # 0 where a new block begins
    if slot >= manager.block_size and not own_slot:
        return (
            f"slot {slot} of block {block_id} was written, but a block has slots 0 to "
            f"{manager.block_size - 1}. Behind a full block a new one begins: `ready_block` takes it."
        )
    holders = manager.block_refcounts.get(block_id, 0)
    if not holders:
        return (
            f"block_idx {block_index} of this layer was written, which has no holder, expected "
            f"{last_id - offset}. A block's id counts through all layers; `block_idx` has the `block_index` "
            "of its record, its place in the layer."
        )
    if holders > 1:
        return (
            f"block {block_id} was written while it had {holders} holders, expected 1. `ready_block` copies "
            "a block that others hold, before the write."
        )
    if (recorded := manager.info(last_id).block_index) != (own := last_id - offset):
        return (
            f"the record of block {last_id} has block_index {recorded}, expected {own}. Every block has a "
            "record of its own, a copy's too."
        )
    if (slot, block_id) != (own_slot, last_id):
        return (
            f"slot {slot} of block {block_id} was written, expected slot {own_slot} of block {last_id}. The "
            "slot is the number of tokens in the request's last block before this one is counted; row b, "
            "block b and slot b belong to one request."
        )
    return ""


# --- failures ---------------------------------------------------------------------------------------------


def failed_write(build: Build) -> None:
    """When a write fails, the error reaches the caller, no token is counted, and what was made ready can be
    undone.
    """
    engine = started(build)
    engine.step()  # by now some last blocks have room, and one has none
    manager, running = engine.kv_manager, list(engine.scheduler.running.items())
    sessions = [session for _, session in running]
    _, _, num_heads, _, head_dim = manager.k_cache.shape
    step = engine.decode_step
    assert isinstance(step, DecodeStep), "rungs 02 and 05 keep their state on the host"
    new = [manager.k_cache.new_zeros(len(sessions), num_heads, head_dim)] * manager.num_layers
    name = "a token is counted when it is written"
    with torch.inference_mode():
        with suppress(PlantedError), planted_failure(manager.kv_write, "write"):
            step.kv_append.append(sessions, new, new)
            raise BrokenContract(
                f"{name}: layer 0's write raised, and the append did not. Let the error through: the engine "
                "must learn of it to undo the step."
            )
        for request, session in running:
            for layer_idx, block_ids in enumerate(session.block_ids_per_layer):
                if (counted := manager.num_tokens(block_ids)) != session.num_tokens:
                    raise BrokenContract(
                        f"{name}: after layer 0's write had raised, layer {layer_idx} counted {counted} "
                        f"tokens for request {request.request_id}, expected {session.num_tokens}. Count "
                        "after the write: a length is never ahead of the data."
                    )
    undo(engine)


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
