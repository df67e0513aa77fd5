"""Lesson 04: the package's identity-pos kernel for the toy write of lesson 03, in the interpreter too."""

from collections.abc import Sequence

from torch import Tensor

from labkit.kernels import kv_append_triton_identity_pos
from labkit.kvcache import FullBatchWrite
from labkit.kvcache.kv_write import index_tensor


class TritonWrite(FullBatchWrite):
    """A whole batch by the identity-pos kernel; whatever else as on rung 03."""

    def write(
        self,
        k_cache_layer: Tensor,
        v_cache_layer: Tensor,
        key_new: Tensor,
        value_new: Tensor,
        batch_idx: Sequence[int],
        block_idx: Sequence[int],
        pos: Sequence[int],
    ) -> str:
        """Write the requests of batch_idx, with arguments as in `KVWrite`; returns the path taken."""
        to = k_cache_layer, v_cache_layer, key_new, value_new
        if len(batch_idx) < len(key_new):
            return super().write(*to, batch_idx, block_idx, pos)
        kv_append_triton_identity_pos(*to, *(index_tensor(i, key_new.device) for i in (block_idx, pos)))
        return "identity_pos"
