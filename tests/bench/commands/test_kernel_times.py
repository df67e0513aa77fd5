"""`kv-append` and `attention`: every form writes the same tokens, and rates stand beside that of a copy."""

import torch

from labkit.bench.commands.attention import attention_table
from labkit.bench.commands.kv_append import BLOCK_SIZE, LAYERS, D, H, append_calls
from labkit.results import AttentionTime

CPU = torch.device("cpu")
PATHS = ["indexed", "generic", "full_batch", "identity_pos"]


def test_every_path_writes_the_same_tokens_once_per_layer():
    caches = {}
    for path in PATHS:
        torch.manual_seed(0)
        calls, _ = append_calls(3, CPU)
        assert list(calls) == PATHS and len(calls[path]) == LAYERS
        for call in calls[path]:
            call()
        caches[path] = [call.args[:2] for call in calls[path]]
    for k_cache, v_cache in caches["indexed"]:
        assert k_cache.shape == v_cache.shape == (3, H, BLOCK_SIZE, D)
        written = k_cache.flatten(3).any(dim=3).any(dim=1)  # [B, block_size]
        assert written.nonzero().tolist() == [[b, 5] for b in range(3)]
    for path in PATHS[1:]:
        for pair, expected in zip(caches[path], caches["indexed"], strict=True):
            assert all(map(torch.equal, pair, expected)), path


def test_the_table_holds_each_kernels_rate_against_a_copys():
    times = [
        AttentionTime(kernel, 8, 900, splits, (us * 1e-6,) * 3, num_bytes=2000)
        for kernel, splits, us in (("one_program", 1, 4.0), ("split", 8, 2.0))
    ]
    table = attention_table(times, bandwidth=4e9)
    assert table.loc[(8, 900, "one_program")].tolist() == [1, 4.0, 12.5]
    assert table.loc[(8, 900, "split")].tolist() == [8, 2.0, 25.0]
