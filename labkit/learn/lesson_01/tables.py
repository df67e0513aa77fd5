"""Lesson 01: rows that are counted and timed, and the traps of those that are kept."""

import time
from collections.abc import Sequence
from statistics import median

import torch
from torch import Tensor

from labkit.bench import cost_cards, host_engine
from labkit.engine import InferenceEngine, InferenceSession
from labkit.kvcache import CachedBlockTables, KVBlockManager, RebuiltBlockTables
from labkit.kvcache.block_tables import RowHolder
from labkit.ladder import LADDER
from labkit.learn.gates.gate import raised
from labkit.learn.lesson_01.exercises import row_of
from labkit.watch import steady_decode, steady_prompts

# --- block tables that are counted, timed, or wrong on purpose -----------------------------------------


def rows_made(engine: InferenceEngine, num_steps: int = 128) -> str:
    """Decode 8 requests for `num_steps` steps; how many rows the engine's block tables made, of how many that
    they handed out; and how many index tensors one more step makes, in which no row changes. The block tables
    are a reader's, and count the rows that they make in `num_made`.
    """
    tables, asked = engine.decode_step.block_tables, 0
    try:
        with steady_decode(engine, steady_prompts(8, lengths=(20, 23))) as request_ids:
            before = tables.num_made
            for _ in range(num_steps):
                engine.step()
                asked += engine.kv_manager.num_layers * len(request_ids)
            made = tables.num_made - before
            _, index_tensors = cost_cards.count_operators(engine)
    except Exception as error:  # whatever the reader's code raises
        return f"rows made: not counted, because the engine {raised(error)}"
    return f"rows made: {made} of {asked}; index tensors in a step: {index_tensors}"


class NumberOnlyBlockTables(CachedBlockTables):
    """A block table cache that is wrong on purpose: it makes a row anew only when the *number* of blocks has
    changed."""

    def __init__(self, kv_manager: KVBlockManager, max_batch_size: int) -> None:
        super().__init__(kv_manager, max_batch_size)
        self._rows: dict[tuple[RowHolder, int], list[int]] = {}

    def fill(self, block_tables_cpu: Tensor, sessions: Sequence[RowHolder]) -> None:
        """Fill the tables [L, B, M] with the sessions' rows, made anew or kept."""
        block_tables_cpu.zero_()
        for layer_idx in range(self.kv_manager.num_layers):
            offset = self.kv_manager.layer_offset(layer_idx)
            for b, session in enumerate(sessions):
                block_ids = session.block_ids_per_layer[layer_idx]
                row = self._rows.get((session, layer_idx), [])
                if len(row) != len(block_ids):
                    row = [block_id - offset for block_id in block_ids]
                    self._rows[session, layer_idx] = row
                block_tables_cpu[layer_idx, b, : len(row)] = torch.tensor(row, dtype=torch.int32)


@torch.inference_mode()
def table_times(
    device: torch.device | str, batch_size: int = 64, repeats: int = 15
) -> tuple[float, float, float]:
    """Median microseconds of making the block tables of GPT-2's layers for a steady batch: from lists, as
    rung 00 does; by rung 01 with every row kept; and by rung 01 with every row made anew."""
    engine = host_engine(LADDER["01"].options, batch_size, device)
    cached, rebuilt = engine.decode_step.block_tables, RebuiltBlockTables(engine.kv_manager, batch_size)
    seconds: list[tuple[float, ...]] = []
    with steady_decode(engine, steady_prompts(batch_size, (8,))):
        sessions = list(engine.scheduler.running.values())
        for _ in range(repeats):
            started = [time.perf_counter()]
            for tables in (rebuilt, cached):
                tables.build(sessions)
                started.append(time.perf_counter())
            for session in sessions:
                session.roll_back()  # takes no token back, but forgets the rows
            started_anew = time.perf_counter()
            cached.build(sessions)
            anew = time.perf_counter() - started_anew
            seconds.append((started[1] - started[0], started[2] - started[1], anew))
    return tuple(1e6 * median(column) for column in zip(*seconds, strict=True))


# --- two traps around a row that is kept ---------------------------------------------------------------


def cut_and_regrow(forget_rows: bool) -> tuple[list[int], list[int]]:
    """Exercise 2 with blocks that the manager hands out: a sequence shrinks by two blocks and grows by two
    again, while other sequences come and go. Returns its blocks and its row.

    forget_rows: shrink as the engine does, by `InferenceSession.roll_back`; else by `truncate` alone.
    """
    # A block holds one token, so tokens are blocks.
    manager = KVBlockManager(num_layers=1, num_heads=1, head_dim=1, block_size=1, max_blocks_per_layer=8)
    sequence, leaver, newcomer = (InferenceSession(manager) for _ in range(3))

    def grow(session: InferenceSession, num_tokens: int) -> None:
        zeros = torch.zeros(1, 1, num_tokens, 1)  # [L, H, T, D]
        session.append_prompt(zeros, zeros)

    grow(sequence, 3)
    grow(leaver, 1)
    row_of(sequence)
    sequence.num_tokens = 1
    if forget_rows:
        sequence.roll_back()
    else:
        manager.truncate(sequence.block_ids_per_layer[0], sequence.num_tokens)
    grow(newcomer, 1)  # takes what was the sequence's middle block
    leaver.release()  # gives the block that will be in the middle
    grow(sequence, 2)
    return sequence.block_ids_per_layer[0], row_of(sequence)


def rows_arrived(num_layers: int, num_buffers: int) -> int:
    """How many layers' rows arrive if every asynchronous copy runs as late as it may.

    Layer i fills buffer i % num_buffers with its rows, here its own number, and asks for a copy, which
    reads the buffer only when all layers have asked.
    """
    buffers = torch.full((num_buffers,), -1)
    for layer_idx in range(num_layers):
        buffers[layer_idx % num_buffers] = layer_idx
    layers = torch.arange(num_layers)
    return int((buffers[layers % num_buffers] == layers).sum())  # all copies, after the last was asked for
