"""Lesson 03's toy write: launches are counted; and Triton compiles as often as Deeper 03 says."""

import pytest
import torch
from triton_marks import needs_triton

from labkit.kernels.triton_runtime import triton
from labkit.kvcache import FullBatchWrite
from labkit.learn.lesson_03.toy import TritonWrite, launched

pytestmark = needs_triton


def test_a_plain_twin_beside_a_kernel_is_told():
    class Both(TritonWrite):
        def write(self, *arguments):
            FullBatchWrite.write(FullBatchWrite(self._device), *arguments)
            return super().write(*arguments)

    assert launched(Both, (1, 1, 1)) == (
        "kernels launched for the toy's write: 1 (6 programs, grid (3, 2, 1)); the plain twin wrote, too: "
        "leave the call of `super()` out"
    )


def test_what_launches_nothing_and_what_raises_is_told():
    class Raises(FullBatchWrite):
        def write(self, *arguments):
            raise ValueError("no")

    assert launched(FullBatchWrite, (1, 1, 1)) == "kernels launched for the toy's write: 0"
    assert launched(Raises, (1, 1, 1)).startswith(
        "kernels launched for the toy's write: not counted, because it raised ValueError: no"
    )


# Launched for every slot of a block: the first is compiled for 1, for multiples of 16, and for the rest.
@triton.jit
def specialized_kernel(out_ptr, pos):
    triton.language.store(out_ptr, pos)


@triton.jit(do_not_specialize=["pos"])
def general_kernel(out_ptr, pos):
    triton.language.store(out_ptr, pos)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("kernel", "versions"),
    [(specialized_kernel, 3), (general_kernel, 1)],
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
