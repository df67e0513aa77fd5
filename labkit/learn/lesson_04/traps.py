"""Lesson 04: writes that are wrong on purpose."""

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.kvcache import FullBatchWrite
from labkit.kvcache.kv_write import index_tensor, is_constant
from labkit.learn.lesson_04.forms import write_identity_pos


class KeptByLength(FullBatchWrite):
    """Keeps index tensors, and takes a kept one for every list that is as long as its own."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.device = device
        self.kept: dict[tuple[str, int], Tensor] = {}

    def index(self, name: str, numbers: Sequence[int]) -> Tensor:
        """The numbers as a tensor, or what was kept of other ones."""
        key = name, len(numbers)
        if key not in self.kept:
            self.kept[key] = index_tensor(numbers, self.device)
        return self.kept[key]

    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos) -> str:
        """Write the requests of batch_idx, with arguments as in `KVWrite`; returns the path taken."""
        to = k_cache_layer, v_cache_layer, key_new, value_new
        if len(batch_idx) < len(key_new) or is_constant(pos):
            return super().write(*to, batch_idx, block_idx, pos)
        write_identity_pos(*to, self.index("blocks", block_idx), self.index("slots", pos))
        return "identity_pos"
