"""Devices, dtypes and sizes: what this machine has is taken, all else is refused by name."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from bad_values import refused
from helpers import GREEDY, small_model, tokens_alone

from labkit import LADDER, InferenceEngine
from labkit.engine.device import current_device, default_dtype, pick_device
from labkit.errors import OptionError

# --- devices and dtypes ----------------------------------------------------------------------------


@pytest.mark.parametrize("number", LADDER)
def test_float64_is_refused_where_a_rung_has_kernels_for_less(number):
    arguments = (small_model(), LADDER[number].options)
    if number >= "09":
        with refused(OptionError, "dtype = torch.float64 needs layer_kernels = 'separate'"):
            InferenceEngine(*arguments, device="cpu", dtype=torch.float64)
    else:
        engine = InferenceEngine(*arguments, device="cpu", dtype=torch.float64)
        (completion,) = engine.generate([(1, 2, 3)], GREEDY)
        assert completion.token_ids == tokens_alone((1, 2, 3), GREEDY)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("number", ["00", "05", "10"])
def test_the_other_floats_run(number, dtype):
    engine = InferenceEngine(small_model(), LADDER[number].options, device="cpu", dtype=dtype)
    assert (engine.dtype, engine.model.dtype) == (dtype, dtype)
    assert len(engine.generate([(1, 2, 3)], GREEDY)[0].token_ids) == 8


@pytest.mark.parametrize(
    "name", ["cpu", "cpu:0", torch.device("cpu"), torch.device("cpu", 0), np.str_("cpu")]
)
def test_the_cpu_has_these_names(name):
    assert pick_device(name) == torch.device("cpu")


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "empty", lambda _, device: SimpleNamespace(device=torch.device(device)))


@pytest.mark.parametrize(
    "name", ["cuda:2", "cuda:9", "cuda:256", "cuda:300", "cuda:9999", torch.device("cuda", 2)]
)
def test_a_gpu_past_the_last_is_refused(two_gpus, name):
    """Also an index that torch wraps around: its "cuda:256" is the first GPU."""
    with refused(OptionError, f"device '{name}' is not on this machine: .* 'cuda:0' to 'cuda:1'"):
        pick_device(name)


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:1", torch.device("cuda"), torch.device("cuda", 1)])
def test_a_gpu_that_is_there_is_taken(two_gpus, name):
    assert pick_device(name) == torch.device(name)
    assert pick_device(None) == torch.device("cuda")


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:7", torch.device("cuda", 1)])
def test_a_gpu_is_refused_where_there_is_none(monkeypatch, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused(OptionError, f"device '{name}' needs a CUDA GPU"):
        pick_device(name)


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
