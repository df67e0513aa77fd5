"""How the attention kernel learns where a sequence's blocks are.

A block table maps logical blocks to physical ones: [L, B, M] int32, row (l, b) naming the blocks of
request b in layer l's pool, padded with 0 to the M blocks of the longest possible sequence.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from labkit.kvcache.block_books import BlockHolder
from labkit.kvcache.block_manager import KVBlockManager
from labkit.ranges import named_range


class RowHolder(BlockHolder, Protocol):
    """A holder of blocks that keeps its rows of the block tables."""

    def get_paged_block_table_row_cpu(self, *, layer_idx: int, offset: int) -> Tensor:
        """Its row [M] int32 in host memory: block ids less `offset`, padded with 0."""


class BlockTables:
    """Block tables that are filled on the host and copied to the device, all layers at once, in each step."""

    watch_points = ("build", "fill")

    def __init__(self, kv_manager: KVBlockManager, max_batch_size: int) -> None:
        self.kv_manager = kv_manager
        size = kv_manager.num_layers * max_batch_size * kv_manager.max_blocks_per_seq
        device = kv_manager.k_cache.device
        # Pinned, so that the copy to the GPU is asynchronous. A step reads its tokens back before the
        # next one builds, so the copy is over when this buffer is written again.
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._device = torch.zeros(size, dtype=torch.int32, device=device)

    def build(self, sessions: Sequence[RowHolder]) -> Tensor:
        """The tables [L, B, M] of these sessions on the device, valid until the next call."""
        shape = (self.kv_manager.num_layers, len(sessions), self.kv_manager.max_blocks_per_seq)
        size = shape[0] * shape[1] * shape[2]
        block_tables_cpu = self._host[:size].view(shape)
        block_tables = self._device[:size].view(shape)
        with named_range("labkit.decode_step_sessions.build_block_tables"):
            self.fill(block_tables_cpu, sessions)
        with named_range("labkit.decode_step_sessions.h2d_block_tables"):
            block_tables.copy_(block_tables_cpu, non_blocking=True)
        return block_tables

    def fill(self, block_tables_cpu: Tensor, sessions: Sequence[RowHolder]) -> None:
        """Write every row of the tables [L, B, M] in host memory. Subclasses say how."""
        raise NotImplementedError


class RebuiltBlockTables(BlockTables):
    """Block tables whose every row is made anew from Python lists, per layer and step (the state before
    write-up 036)."""

    def fill(self, block_tables_cpu: Tensor, sessions: Sequence[BlockHolder]) -> None:
        """Write every row of the tables [L, B, M] in host memory, one by one."""
        for layer_idx in range(self.kv_manager.num_layers):
            offset = self.kv_manager.layer_offset(layer_idx)
            rows = []
            for session in sessions:
                physical = [block_id - offset for block_id in session.block_ids_per_layer[layer_idx]]
                rows.append(physical + [0] * (self.kv_manager.max_blocks_per_seq - len(physical)))
            block_tables_cpu[layer_idx].copy_(torch.tensor(rows, dtype=torch.int32))


class CachedBlockTables(BlockTables):
    """Block tables put together from rows that sessions keep: one `torch.stack` per layer (write-up 036)."""

    def fill(self, block_tables_cpu: Tensor, sessions: Sequence[RowHolder]) -> None:
        """Write every row of the tables [L, B, M] in host memory, a whole layer at once."""
        for layer_idx in range(self.kv_manager.num_layers):
            offset = self.kv_manager.layer_offset(layer_idx)
            rows = [
                session.get_paged_block_table_row_cpu(layer_idx=layer_idx, offset=offset)
                for session in sessions
            ]
            torch.stack(rows, out=block_tables_cpu[layer_idx])
