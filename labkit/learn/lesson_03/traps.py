"""Lesson 03: writes that are wrong on purpose."""

import torch
from torch import Tensor

from labkit.kernels.triton_runtime import tl, triton
from labkit.kvcache import FullBatchWrite
from labkit.learn.lesson_03.offsets import sizes


@triton.jit
def no_mask_kernel(
    cache_ptr, new_ptr, blocks_ptr, slot,
    stride_n, stride_h, stride_t, new_stride_b, new_stride_h, D, BLOCK_D: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    h = tl.program_id(1)
    d = tl.arange(0, BLOCK_D)
    block = tl.load(blocks_ptr + b).to(tl.int64)
    numbers = tl.load(new_ptr + b * new_stride_b + h * new_stride_h + d)
    tl.store(cache_ptr + block * stride_n + h * stride_h + slot * stride_t + d, numbers)


class WithoutMask(FullBatchWrite):
    """Writes a whole batch at one slot by a kernel whose programs store all their lanes, whether or not the
    head has as many numbers."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._full_batch = self._without_mask

    def _without_mask(
        self, k_cache: Tensor, v_cache: Tensor, key: Tensor, value: Tensor, blocks: Tensor, slot: int
    ) -> None:
        for cache, new in ((k_cache, key), (v_cache, value)):
            no_mask_kernel[tuple(key.shape[:2])](cache, new, blocks, slot, **sizes(cache, new=new))
