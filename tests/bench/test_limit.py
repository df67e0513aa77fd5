"""The hardware's limit: bytes and operations counted, bandwidth and steps measured."""

from types import SimpleNamespace

import pytest
import torch

from labkit.bench import (
    copy_bandwidth,
    decode_limit,
    forward_flops,
    limit,
    on_paper,
    read_bandwidth,
    step_limit,
    time_decode_steps,
)
from labkit.model.checkpoint import random_network
from labkit.model.config import GPT2Config


def test_limit_counts_weights_once_and_every_live_token():
    config = GPT2Config(vocab_size=11, n_positions=7, n_embd=4, n_layer=2, n_head=2)
    gpt2 = random_network(config, seed=0)
    a_layer = 4 * 12 + 12 + 4 * 4 + 4 + 4 * 16 + 16 + 16 * 4 + 4 + 4 * 4
    limit = decode_limit(gpt2, [5, 3], bandwidth=100.0)
    assert limit.weight_bytes == 4 * (11 * 4 + 2 * a_layer + 8)
    assert limit.kv_bytes == 4 * 2 * 2 * 4 * (5 + 3 + 2)
    assert limit.seconds == pytest.approx((limit.weight_bytes + limit.kv_bytes) / 100)
    assert limit.tokens_per_second == pytest.approx(2 / limit.seconds)


def test_a_copy_counts_the_bytes_read_and_written_and_reading_alone_each_byte_once(monkeypatch):
    made = []
    monkeypatch.setattr(limit, "fastest_seconds", lambda run, device: made.append(run()) or 0.5)
    assert copy_bandwidth("cpu") == 2 * 2**27 / 0.5 and made[0].nbytes == 2**27
    assert read_bandwidth("cpu") == 2**27 / 0.5 and made[1] == 2**27 / 4  # of ones: each number was read


def test_the_fewest_steps_are_those_of_the_longest_or_of_full_batches():
    assert limit.least_steps([5, 2, 1], 8) == 4
    assert limit.least_steps([5, 5, 5, 5], 2) == 8
    assert limit.least_steps([1], 4) == limit.least_steps([], 1) == 0
    assert decode_limit(on_paper(), [], bandwidth=1.0).seconds == 0  # without requests there is no step


def test_limit_of_gpt2_is_the_published_one():
    """LINEAGE: 64 x 512 tokens, B = 64, about 226,000 tokens/s on an H100 that copies 3.0 TB/s."""
    limit = decode_limit(on_paper(), [256] * 64, bandwidth=3.0e12)
    assert limit.tokens_per_second == pytest.approx(226_000, rel=0.02)
    assert step_limit(64, 256, bandwidth=3.0e12) == limit


def test_flops_agree_with_torchs_own_counter(tiny):
    from torch.utils.flop_counter import FlopCounterMode

    config, num_tokens = tiny.config, 6
    with FlopCounterMode(display=False) as counter:
        tiny.network.prefill(torch.arange(num_tokens)[None], torch.tensor([num_tokens]))
    # torch counts the square of attention scores, of which the causal half is needed
    unneeded = 4 * config.n_layer * config.n_embd * (num_tokens * (num_tokens - 1) / 2)
    counted = counter.get_total_flops() - unneeded
    assert forward_flops(config, num_tokens, num_tokens) == pytest.approx(counted, rel=0.01)


def test_each_step_is_timed_by_itself_and_the_device_waited_for_before_and_behind_it(monkeypatch):
    done = []
    moments = iter([0.0, 2.5, 50.0, 53.5])
    monkeypatch.setattr(limit.time, "perf_counter", lambda: done.append("clock") or next(moments))
    monkeypatch.setattr(limit, "synchronize", lambda device: done.append("wait"))
    engine = SimpleNamespace(device=None, step=lambda: done.append("step"))
    assert time_decode_steps(engine, 2) == [2.5, 3.5]
    assert done == ["wait", "clock", "step", "wait", "clock"] * 2
