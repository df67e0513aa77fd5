"""Lesson 01: two traps around a row that is kept: a list that shrinks, and a buffer that is still read."""

import torch

from labkit.engine import InferenceSession
from labkit.kvcache import KVBlockManager
from labkit.learn.lesson_01.exercises import row_of


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
    device = torch.full((num_layers,), -1)
    asked = []
    for layer_idx in range(num_layers):
        buffers[layer_idx % num_buffers] = layer_idx
        asked.append((layer_idx, layer_idx % num_buffers))
    for layer_idx, buffer in asked:
        device[layer_idx] = buffers[buffer]
    return int((device == torch.arange(num_layers)).sum())
