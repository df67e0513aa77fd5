"""A sum and its residual, against the plain twin."""

from functools import partial

import pytest
import torch
from fused_linear_cases import TOLERANCE, devices, dtypes, needs_triton

from labkit.kernels.fused_linear import mean_and_rstd
from labkit.kernels.residual_sum import residual_sum_plain, residual_sum_triton


@needs_triton
@devices
@dtypes
@pytest.mark.parametrize("sizes", [(1, 16), (3, 1600), (2, 2048)], ids=str)
def test_it_is_the_sum_with_the_statistics_of_its_rows(
    sizes: tuple[int, int], dtype: torch.dtype, device: str
):
    torch.manual_seed(0)
    total, residual = torch.randn(2, *sizes, device=device).to(dtype)
    out, statistics = residual_sum_triton(total, residual)
    expected, theirs = residual_sum_plain(total, residual)
    close = partial(torch.testing.assert_close, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    close(out, expected)
    close(mean_and_rstd(statistics, sizes[1], 1e-5), mean_and_rstd(theirs, sizes[1], 1e-5))


@pytest.mark.parametrize("function", [residual_sum_plain, residual_sum_triton])
def test_rows_that_do_not_fit_are_refused(function):
    with pytest.raises(ValueError, match=r"residual has shape \[2, 8\], expected \[2, 16\]"):
        function(torch.zeros(2, 16), torch.zeros(2, 8))
