"""Lesson 03: the solutions of its exercises say what the package does."""

import pytest
import torch

from labkit import LADDER, CacheConfig, InferenceEngine, SamplingParams, kernels, watch
from labkit.learn.lesson_03.exercises import full_batch_steps, offsets


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


@pytest.mark.parametrize(
    ("lengths", "num_new"), [((5, 5), (4, 4)), ((5, 6), (4, 4)), ((4, 8), (3, 5)), ((5, 6, 9), (6, 2, 6))]
)
def test_the_solution_of_full_batch_steps_is_what_the_engine_does(tiny, lengths, num_new):
    cache = CacheConfig(block_size=4, prefix_cache=False)
    engine = InferenceEngine(tiny, LADDER["03"].options, device="cpu", cache=cache)
    for length, count in zip(lengths, num_new, strict=True):
        engine.add_request([1] * length, SamplingParams(count, stop_on_eos=False))
    with watch.record_writes(engine) as writes:
        while engine.has_work:
            engine.step()
    taken = sum(write.path == "full_batch" for write in writes) / engine.kv_manager.num_layers
    # The prompt's step gives the first new token; each later one is written before the next is chosen.
    assert taken == full_batch_steps(lengths, [count - 1 for count in num_new], 4)
