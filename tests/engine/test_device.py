"""Where an engine computes, in which numbers, and whether its pool has room there."""

import contextlib

import pytest
import torch
from helpers import CONFIG

from labkit import LADDER, CacheConfig, SchedulerConfig
from labkit.engine import device as device_module
from labkit.engine.device import check_dtype, check_room, current_device, default_dtype, memory_of
from labkit.errors import OptionError

CPU = torch.device("cpu")


def test_an_engine_computes_in_16_bits_on_a_gpu_and_in_32_on_the_cpu():
    assert default_dtype(torch.device("cuda", 1)) == torch.float16
    assert default_dtype(CPU) == torch.float32


def test_only_a_gpu_is_made_the_current_one(monkeypatch):
    made = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: made.append(device) or contextlib.nullcontext())
    with current_device(CPU):
        assert made == []
    with current_device(torch.device("cuda", 1)):
        assert made == [torch.device("cuda", 1)]


def test_64_bits_are_for_rungs_whose_kernels_compute_in_them():
    assert check_dtype(torch.float64, LADDER["08"].options) == torch.float64
    assert check_dtype(torch.bfloat16, LADDER["09"].options) == torch.bfloat16
    with pytest.raises(OptionError, match="needs layer_kernels = 'separate'"):
        check_dtype(torch.float64, LADDER["09"].options)


def test_a_pool_may_fill_the_memory_to_the_last_byte(monkeypatch):
    """Keys and values of 2 layers of 16 numbers each, 4 bytes each, for 8 blocks of 4 tokens."""
    needed = 2 * 2 * 16 * 4 * 8 * 4
    cache, scheduler = CacheConfig(block_size=4, max_blocks_per_layer=8), SchedulerConfig(max_batch_size=1)
    monkeypatch.setattr(device_module, "memory_of", lambda device: needed)
    check_room(CPU, torch.float32, CONFIG, cache, scheduler)
    monkeypatch.setattr(device_module, "memory_of", lambda device: needed - 1)
    with pytest.raises(OptionError, match="the KV pool is too large: cpu has"):
        check_room(CPU, torch.float32, CONFIG, cache, scheduler)


def test_a_gpu_says_its_memory_itself(monkeypatch):
    class Properties:
        total_memory = 80 * 2**30

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    assert memory_of(torch.device("cuda", 0)) == 80 * 2**30
    assert memory_of(CPU) > 2**20
