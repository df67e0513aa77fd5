"""Errors that a reader's kernel meets are followed by what helps."""

import pytest
import torch
from triton_marks import needs_triton

from labkit.kernels.triton_runtime import tl, triton
from labkit.learn.gates.gate import kernel_hint


@triton.jit
def count_kernel(out_ptr, start, FORM: tl.constexpr):
    if FORM == 0:
        places = tl.arange(start, start + 4)
    if FORM == 1:
        places = tl.load(start) + tl.arange(0, 4)
    if FORM == 2:
        places = start + tl.arange(0, 4)
    tl.store(out_ptr + places, 1.0)


@needs_triton
@pytest.mark.parametrize(
    ("launch", "hint"),
    [
        (lambda out: count_kernel[(1,)](out, 0, FORM=0), "`tl.arange` takes constants alone"),
        (lambda out: count_kernel[(1,)](out, 0, FORM=1), "take a pointer"),
        (lambda out: count_kernel(out, 0, FORM=2), "`kernel[grid](...)`"),
    ],
)
def test_an_error_of_triton_is_followed_by_what_helps(launch, hint):
    with pytest.raises(Exception) as caught:
        launch(torch.zeros(8))
    assert hint in kernel_hint(caught.value), caught.value


def test_an_error_of_torch_is_followed_by_what_helps():
    column, row = torch.ones(2) > 0, torch.ones(4)
    with pytest.raises(RuntimeError) as caught:
        _ = column and row
    assert "joined by `&`" in kernel_hint(caught.value)
    with pytest.raises(RuntimeError) as caught:
        _ = torch.ones(2) + row
    assert "`[:, None]`" in kernel_hint(caught.value)


def test_of_another_error_nothing_is_said():
    assert kernel_hint(ValueError("block_idx has shape [3], expected [4]")) == ""
