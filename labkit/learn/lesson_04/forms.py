"""Lesson 04: forms of a write, a toy of it, and its traps."""

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.kernels import (
    kv_append_identity_pos_plain,
    kv_append_triton_full_batch,
    kv_append_triton_identity_pos,
)
from labkit.kvcache import FullBatchWrite, IdentityPosWrite
from labkit.kvcache.kv_write import index_tensor, is_constant, runs_triton

# --- which write each rung takes for which batch -------------------------------------------------------


def write_identity_pos(
    k_cache: Tensor, v_cache: Tensor, key: Tensor, value: Tensor, blocks: Tensor, slots: Tensor
) -> None:
    """The package's write of a whole batch, request b to slot slots[b] of block blocks[b]: its kernel where
    kernels run compiled, elsewhere its plain twin. Raises TypeError for an index that is no tensor."""
    for name, index in (("blocks", blocks), ("slots", slots)):
        if not isinstance(index, Tensor):
            kind = type(index).__name__
            raise TypeError(
                f"{name} is a {kind}, expected an index tensor: self.index(name, numbers) makes one"
            )
    write = kv_append_triton_identity_pos if runs_triton(key.device) else kv_append_identity_pos_plain
    write(k_cache, v_cache, key, value, blocks, slots)


# --- the package's identity-pos kernel for the toy write of lesson 03, in the interpreter too ----------


class TritonWrite(IdentityPosWrite):
    """The package's write of a whole batch by its kernels, in Triton's interpreter too."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._full_batch = kv_append_triton_full_batch  # of slots that a reader makes equal
        self._identity_pos = kv_append_triton_identity_pos


# --- writes that are wrong on purpose ------------------------------------------------------------------


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
