"""Lesson 03: the solution of its exercise says what the package does."""

import torch

from labkit import kernels
from labkit.learn.lesson_03.exercises import offsets


def test_the_solution_of_offsets_is_where_the_kernel_stores():
    """All programs of a grid together name the numbers that the full-batch write changes, each once."""
    B, H, D, slot = 3, 2, 6, 1
    cache = torch.zeros(5, 3, H, D).transpose(1, 2)  # [N, H, block_size, D], strides out of order
    block_idx = torch.tensor([3, 0, 2], dtype=torch.int32)
    new = torch.ones(B, H, D)
    kernels.kv_append_full_batch_plain(cache, torch.zeros_like(cache), new, new, block_idx, slot)
    told = block_idx.tolist(), slot, cache.stride()[:3], D, 8
    stored = [o for b in range(B) for h in range(H) for o in offsets(b, h, *told)]
    in_memory = torch.as_strided(cache, (cache.numel(),), (1,))
    assert sorted(stored) == in_memory.nonzero().flatten().tolist()
