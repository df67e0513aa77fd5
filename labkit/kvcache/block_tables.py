"""How the attention kernel learns where a sequence's blocks are.

A block table maps logical blocks to physical ones: [L, B, M] int32, row (l, b) naming the blocks of
request b in layer l's pool, padded with 0 to the M blocks of the longest possible sequence.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.kvcache.block_manager import BlockHolder, KVBlockManager
from labkit.ranges import named_range


class RebuiltBlockTables:
    """Every row is made anew from Python lists, for each layer and step (the state before seed 036)."""

    def __init__(self, kv_manager: KVBlockManager, max_batch_size: int, max_blocks_per_seq: int) -> None:
        self._kv_manager = kv_manager
        self._max_blocks_per_seq = max_blocks_per_seq
        size = kv_manager.num_layers * max_batch_size * max_blocks_per_seq
        device = kv_manager.k_cache.device
        # Pinned, so that the copy to the GPU is asynchronous. A step reads its tokens back before the
        # next one builds, so the copy is over when this buffer is written again.
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._device = torch.zeros(size, dtype=torch.int32, device=device)

    def build(self, sessions: Sequence[BlockHolder]) -> Tensor:
        """The tables [L, B, M] on the device, valid until the next call."""
        shape = (self._kv_manager.num_layers, len(sessions), self._max_blocks_per_seq)
        size = shape[0] * shape[1] * shape[2]
        block_tables_cpu = self._host[:size].view(shape)
        block_tables = self._device[:size].view(shape)
        with named_range("labkit.decode_step_sessions.build_block_tables"):
            for layer_idx in range(self._kv_manager.num_layers):
                offset = self._kv_manager.layer_offset(layer_idx)
                rows = []
                for session in sessions:
                    physical = [block_id - offset for block_id in session.block_ids_per_layer[layer_idx]]
                    rows.append(physical + [0] * (self._max_blocks_per_seq - len(physical)))
                block_tables_cpu[layer_idx].copy_(torch.tensor(rows, dtype=torch.int32))
        with named_range("labkit.decode_step_sessions.h2d_block_tables"):
            block_tables.copy_(block_tables_cpu, non_blocking=True)
        return block_tables
