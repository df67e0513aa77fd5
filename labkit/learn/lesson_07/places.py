"""Lesson 07: who reads what a program of the attention kernel writes."""

from collections.abc import Sequence

import torch

from labkit.engine import InferenceEngine
from labkit.kernels import PagedAttentionAppend, triton_status
from labkit.watch.accesses import KernelRun, record_accesses
from labkit.watch.blocks import block_places

Place = tuple[int, int]  # a block and a slot in it


def places_touched(
    tables: Sequence[Sequence[int]], context_lens: Sequence[int], block_size: int
) -> list[tuple[set[Place], Place]]:
    """The places of a head's cache that the program of each request reads, and the place that it writes."""
    touched = []
    for row, length in zip(tables, context_lens, strict=True):
        places = [(row[t // block_size], t % block_size) for t in range(length + 1)]
        touched.append((set(places[:-1]), places[-1]))
    return touched


def conflicts(touched: Sequence[tuple[set[Place], Place]]) -> int:
    """How many places are written by one program and read or written by another."""
    return sum(
        place in reads or place == written
        for i, (_, place) in enumerate(touched)
        for j, (reads, written) in enumerate(touched)
        if i != j
    )


def record_attention(
    attention: PagedAttentionAppend,
    tables: Sequence[Sequence[int]],
    context_lens: Sequence[int],
    num_blocks: int,
    block_size: int = 4,
) -> KernelRun | None:
    """What each program of an attention reads and writes, for a batch of requests with one head of 2 numbers.
    None where there is no Triton.

    Raises what the attention raises, which may be a reader's.
    """
    if triton_status().mode == "off":
        return None
    like = torch.Generator().manual_seed(0)
    device = "cuda" if triton_status().mode == "native" else "cpu"
    query, key, value = torch.randn(len(tables), 3, 1, 2, generator=like).to(device).unbind(1)
    k_cache, v_cache = torch.randn(2, num_blocks, 1, block_size, 2, generator=like).to(device)
    table, lengths = (torch.tensor(each, dtype=torch.int32, device=device) for each in (tables, context_lens))
    slot_mapping = torch.arange(len(tables), device=device)
    with record_accesses() as runs:
        attention(query, key, value, k_cache, v_cache, table, lengths, slot_mapping, max(context_lens))
    return runs[-1]


def next_step_of(engine: InferenceEngine) -> tuple[list[list[int]], list[int]]:
    """The table rows and lengths with which an engine's next step begins, room for its tokens included. The
    engine is left as it was."""
    manager = engine.kv_manager
    sessions = list(engine.scheduler.running.values())
    try:
        manager.reserve_token_batch(0, [session.block_ids_per_layer[0] for session in sessions])
        rows = [list(block_places(engine, session)[0]) for session in sessions]
        return rows, [session.num_tokens for session in sessions]
    finally:
        engine.decode_step.undo(sessions)
