"""Lesson 03: what it counts, and its figures."""

import pytest
import torch

from labkit import LADDER, CacheConfig, InferenceEngine, kernels, show
from labkit.kernels.triton_runtime import triton
from labkit.learn import lesson_03, not_attempted
from labkit.watch import Positions
from labkit.watch.positions import PositionsStep

# --- what it counts ------------------------------------------------------------------------------------


def engine_of(model, rung):
    cache = CacheConfig(block_size=4, prefix_cache=False)
    return InferenceEngine(model, LADDER[rung].options, device="cpu", cache=cache)


def test_steps_are_counted_by_path_and_by_whether_the_batch_was_whole():
    alone, together, apart = (
        PositionsStep({0: 3}, "full_batch"),
        PositionsStep({0: 4, 1: 4}, "full_batch"),
        PositionsStep({0: 5, 1: 6}, "generic"),
    )
    counts = lesson_03.steps_by_path(Positions(16, (alone, together, together, apart)), batch_size=2)
    assert counts == {
        "decode steps": 4,
        "full_batch": 3,
        "of them with the whole batch": 2,
        "generic": 1,
    }


def test_the_python_of_a_kernel_can_be_shown():
    shown = show.show_source(lesson_03.python_of(kernels.kv_append._kv_append_full_batch_kernel)).data
    assert "tl.program_id(2)" in shown and shown.startswith("`labkit/kernels/kv_append.py`")
    assert lesson_03.python_of(not_attempted) is not_attempted


@pytest.mark.parametrize("numbers", [12 * 64 * 64, 32 * 16 * 128, 5])
def test_the_first_block_past_int32(numbers):
    block = lesson_03.first_block_past_int32(numbers)
    largest = torch.iinfo(torch.int32).max
    assert (block - 1) * numbers <= largest < block * numbers


def test_one_pointer_for_all_layers_overflows_in_a_smaller_cache():
    a_layer, all_layers = (lesson_03.pool_past_int32(pointers, H=12, D=64) for pointers in (12, 1))
    assert a_layer == {"numbers a block": 49152, "first bad block": 43691, "cache (GB)": 103.1}
    assert all_layers["cache (GB)"] == pytest.approx(103.1 / 12, abs=0.05)


# Launched for every slot of a block: the first is compiled for each of what `compiled_for` says.
@triton.jit
def specialized_kernel(out_ptr, pos):
    triton.language.store(out_ptr, pos)


@triton.jit(do_not_specialize=["pos"])
def general_kernel(out_ptr, pos):
    triton.language.store(out_ptr, pos)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("kernel", "versions"),
    [(specialized_kernel, len(set(map(lesson_03.compiled_for, range(64))))), (general_kernel, 1)],
    ids=["specialized", "general"],
)
def test_triton_compiles_as_often_as_the_lesson_says(kernel, versions, monkeypatch):
    compiled = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **about: compiled.append(about))
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    for pos in range(64):
        kernel[(1,)](out, pos)
        assert out.item() == pos
    assert len(compiled) == versions
