"""The K/V write by itself: every path writes the same tokens, and times become rates."""

import torch

from labkit.bench.append_time import BLOCK_SIZE, LAYERS, D, H, append_calls, time_appends

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


def test_each_path_is_measured_as_often_as_asked_for():
    times = time_appends(2, CPU, repeats=3, rounds=1)
    assert [(time.path, time.batch_size) for time in times] == [(path, 2) for path in PATHS]
    assert all(len(time.device_seconds) == len(time.host_seconds) == 3 for time in times)
    assert all(seconds > 0 for time in times for seconds in time.device_seconds + time.host_seconds)
