"""Lesson 03's paths: steps are counted by theirs, and Triton compiles as often as the lesson says."""

import pytest
import torch

from labkit.kernels.triton_runtime import triton
from labkit.learn.lesson_03.paths import compiled_for, steps_by_path
from labkit.watch import Positions
from labkit.watch.positions import PositionsStep


def test_steps_are_counted_by_path_and_by_whether_the_batch_was_whole():
    alone, together, apart = (
        PositionsStep({0: 3}, "full_batch"),
        PositionsStep({0: 4, 1: 4}, "full_batch"),
        PositionsStep({0: 5, 1: 6}, "generic"),
    )
    counts = steps_by_path(Positions(16, (alone, together, together, apart)), batch_size=2)
    assert counts == {
        "decode steps": 4,
        "full_batch": 3,
        "of them with the whole batch": 2,
        "generic": 1,
    }


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
