"""Trials of what appends a step's keys and values: where it writes, how often, and what a failure leaves."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.engine import CacheConfig, InferenceEngine, SamplingParams
from labkit.engine.request import Request
from labkit.kvcache import KVBlockManager
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.cached import TRUE_RECORDS
from labkit.learn.gates.gate import Build, small_model
from labkit.learn.gates.schedule import prove
from labkit.watch import PlantedError, planted_failure, replaced

# In blocks of 4: two that share a partly filled block, one with room for a token, one whose block is full.
PROMPTS = ((1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6), (7, 8, 9), (1, 2, 3, 4))
NUM_TOKENS = 10  # of each: every last block is filled, and another after it
MARK = 7.0  # every new key and value of a step that fails

ONE_WRITE = "Make every block ready first, copies included, then write all rows by one `write_batch`."
NO_WRITE = (
    "A token is fast if its block has room and one holder. Collect the block and slot of each request, then "
    "write them all by one `write_batch`."
)
NOT_FAST = "A token is fast only if its block has room and one holder; for others `ready_block` comes first."


def started(build: Build) -> InferenceEngine:
    """A small engine in which all of PROMPTS run, each with its first token; no step has decoded yet."""
    engine = build(small_model(), dtype=torch.float32, cache=CacheConfig(block_size=4))
    for prompt in PROMPTS:
        engine.add_request(prompt, SamplingParams(NUM_TOKENS, stop_on_eos=False))
        engine.step()  # one at a time, so that a prompt finds those before it in the cache
    return engine


def own_slots(build: Build) -> None:
    """A trial: every write goes to a block that has room and one holder; a step has one batched write per
    layer at most, and one of all rows if each last block has room. Which slot it is, STORED looks at."""
    engine = started(build)
    manager = engine.kv_manager
    while engine.has_work:
        running = engine.scheduler.running
        num_running, takes_block = len(running), any(s.next_token_takes_block for s in running.values())
        written: dict[int, list[int]] = {i: [] for i in range(manager.num_layers)}  # rows of each write
        with replaced(manager.kv_write, "write", partial(_watched, manager, list(running), written)):
            engine.step()
        for layer_idx, counts in written.items():
            if len(counts) > 1 or not (takes_block or counts == [num_running]):
                which = ", some of which take a block" if takes_block else " whose last blocks all have room"
                rows, of_all = (f" of {sum(counts)} rows", " of all") if counts else ("", "")
                raise BrokenContract(
                    f"one write per layer and step: layer {layer_idx} had {len(counts)} batched writes{rows} "
                    f"in a step of {num_running} requests{which}, expected 1{of_all}. "
                    f"{ONE_WRITE if len(counts) > 1 else NO_WRITE}"
                )
        prove(engine, [TRUE_RECORDS])


def _watched(
    manager: KVBlockManager, requests: list[Request], written: dict[int, list[int]], inner: Callable[..., str]
) -> Callable[..., str]:
    def write(k_cache_layer: Tensor, *arguments: Any) -> str:
        layer_idx = (k_cache_layer.storage_offset() // manager.k_cache.stride(0)) % manager.num_layers
        rows, blocks, slots = (list(map(int, indices)) for indices in arguments[-3:])
        written[layer_idx].append(len(rows))
        for b, block_index, slot in zip(rows, blocks, slots, strict=True):
            block_id = manager.layer_offset(layer_idx) + block_index
            holders = manager.block_refcounts.get(block_id, 0)
            if slot < manager.block_size and holders <= 1:
                continue
            wrong = f"block {block_id} was written while it had {holders} holders, expected 1"
            if slot >= manager.block_size:
                last = manager.block_size - 1
                wrong = f"slot {slot} of block {block_id} was written, but a block has slots 0 to {last}"
            raise BrokenContract(
                "a token is written where there is room, into a block of its request's own: "
                f"layer {layer_idx}, request {requests[b].request_id} (row {b}): {wrong}. {NOT_FAST}"
            )
        return inner(k_cache_layer, *arguments)

    return write


@torch.inference_mode()
def failed_write(build: Build) -> None:
    """A trial: when a layer's write fails, the caller learns of it, no token is counted that is not written,
    and what was made ready can be undone."""
    engine = started(build)
    engine.step()  # by now some last blocks have room, and one has none
    manager, sessions = engine.kv_manager, list(engine.scheduler.running.values())
    _, _, num_heads, _, head_dim = manager.k_cache.shape
    new = [manager.k_cache.new_full((len(sessions), num_heads, head_dim), MARK)] * manager.num_layers
    for failed in range(manager.num_layers):
        with suppress(PlantedError), planted_failure(manager.kv_write, "write", failed):
            engine.decode_step.kv_append.append(sessions, new, new)
            raise BrokenContract(
                f"a token is counted when it is written: layer {failed}'s write raised, and the append did "
                "not. Let the error through: the engine must learn of it to undo the step."
            )
        _check_counted(engine, f"layer {failed}'s write had raised")
        for session in sessions:
            session.roll_back()
        try:
            engine.check_integrity()
        except AssertionError as error:
            raise BrokenContract(f"a failed step can be undone: {error}.") from error


def _check_counted(engine: InferenceEngine, when: str) -> None:
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
                    f"a token is counted when it is written: after {when}, layer {layer_idx} counted "
                    f"{counted} tokens for request {request.request_id}, expected {session.num_tokens}. "
                    "Count after the write: a length is never ahead of the data."
                )
