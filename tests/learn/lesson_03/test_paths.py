"""Lesson 03's paths: Triton compiles as often as the lesson says."""

import pytest
import torch

from labkit.kernels.triton_runtime import triton
from labkit.learn.lesson_03.paths import compiled_for


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
    [(specialized_kernel, len(set(map(compiled_for, range(64))))), (general_kernel, 1)],
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
