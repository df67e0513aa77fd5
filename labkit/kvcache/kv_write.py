"""How the keys and values of many requests reach their slots, once the slots are known."""

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.kernels import (
    kv_append_full_batch_plain,
    kv_append_identity_pos_plain,
    kv_append_plain,
    kv_append_triton,
    kv_append_triton_full_batch,
    kv_append_triton_identity_pos,
    triton_status,
)


class KVWrite:
    """Writes one new token per request into one layer of the cache. Subclasses say how."""

    watch_points = ("write",)

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def write(
        self,
        k_cache_layer: Tensor,  # [N, H, block_size, D]
        v_cache_layer: Tensor,
        key_new: Tensor,  # [B, H, D]
        value_new: Tensor,
        batch_idx: Sequence[int],  # which requests are written, rising
        block_idx: Sequence[int],  # of each of them
        pos: Sequence[int],
    ) -> str:
        """Write the named requests' keys and values into their slots; returns the name of the path taken."""
        raise NotImplementedError


class IndexedWrite(KVWrite):
    """Writes by indexed assignment with three index tensors (write-up 038)."""

    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos) -> str:
        """Write the requests of batch_idx into their slots, with arguments as in `KVWrite`; returns the path
        taken, "indexed"."""
        idx_t, blk_t, pos_t = (index_tensor(i, self._device) for i in (batch_idx, block_idx, pos))
        kv_append_plain(k_cache_layer, v_cache_layer, key_new, value_new, idx_t, blk_t, pos_t)
        return "indexed"


class FullBatchWrite(KVWrite):
    """Writes by one kernel: where the whole batch is at one position, one without batch_idx and pos; else the
    generic one (write-up 061)."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        on_triton = runs_triton(device)
        self._full_batch = kv_append_triton_full_batch if on_triton else kv_append_full_batch_plain
        self._generic = kv_append_triton if on_triton else kv_append_plain

    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos) -> str:
        """Write the requests of batch_idx into their slots, with arguments as in `KVWrite`; returns the path
        taken, "full_batch" or "generic"."""
        blk_t = index_tensor(block_idx, self._device)
        if len(batch_idx) == len(key_new) and is_constant(pos):
            self._full_batch(k_cache_layer, v_cache_layer, key_new, value_new, blk_t, pos[0])
            return "full_batch"
        idx_t, pos_t = (index_tensor(i, self._device) for i in (batch_idx, pos))
        self._generic(k_cache_layer, v_cache_layer, key_new, value_new, idx_t, blk_t, pos_t)
        return "generic"


class IdentityPosWrite(FullBatchWrite):
    """Writes by one kernel: without batch_idx and pos where the whole batch is at one position, without
    batch_idx where it is at differing ones; else the generic one (write-up 062)."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        on_triton = runs_triton(device)
        self._identity_pos = kv_append_triton_identity_pos if on_triton else kv_append_identity_pos_plain

    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos) -> str:
        """Write the requests of batch_idx into their slots, with arguments as in `KVWrite`; returns the path
        taken, "full_batch", "identity_pos" or "generic"."""
        blk_t = index_tensor(block_idx, self._device)
        if len(batch_idx) == len(key_new):
            if is_constant(pos):
                self._full_batch(k_cache_layer, v_cache_layer, key_new, value_new, blk_t, pos[0])
                return "full_batch"
            pos_t = index_tensor(pos, self._device)
            self._identity_pos(k_cache_layer, v_cache_layer, key_new, value_new, blk_t, pos_t)
            return "identity_pos"
        idx_t, pos_t = (index_tensor(i, self._device) for i in (batch_idx, pos))
        self._generic(k_cache_layer, v_cache_layer, key_new, value_new, idx_t, blk_t, pos_t)
        return "generic"


def index_tensor(indices: Sequence[int], device: torch.device) -> Tensor:
    """The indices as an int32 tensor. On a GPU this is a synchronizing copy: the host waits until it is
    done."""
    return torch.tensor(indices, dtype=torch.int32, device=device)


def is_constant(pos: Sequence[int]) -> bool:
    """Whether there are positions and all are equal."""
    return bool(pos) and pos.count(pos[0]) == len(pos)


def runs_triton(device: torch.device) -> bool:
    """Whether Triton kernels run compiled on this device; elsewhere their plain-PyTorch twins run."""
    return device.type == "cuda" and triton_status().mode == "native"
