"""Rows behind a norm, against PyTorch's norms."""

import pytest
import torch
import torch.nn.functional as F
from fused_linear_cases import TOLERANCE
from triton_marks import devices, dtypes, needs_triton

from labkit.kernels.fused_linear import NormLinear, mean_and_rstd, row_statistics
from labkit.kernels.row_norm import row_norm_plain, row_norm_triton

NORMS = {"RMS": (None, F.rms_norm), "layer": (torch.zeros(1), F.layer_norm)}


@needs_triton
@devices
@dtypes
@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("has_offset", [False, True])
@pytest.mark.parametrize("function", [row_norm_plain, row_norm_triton])
@pytest.mark.parametrize("sizes", [(1, 16), (5, 1600), (8, 64)], ids=str)
def test_it_is_the_norm_of_the_rows_and_their_offset_with_their_statistics(
    sizes: tuple[int, int], function, has_offset: bool, norm: tuple, dtype: torch.dtype, device: str
):
    torch.manual_seed(0)
    column_sums, normed = norm
    x = torch.randn(*sizes, device=device).to(dtype) + 1
    offset = torch.randn(sizes[1], device=device) if has_offset else None
    statistics = function(x, offset, NormLinear(x, column_sums, None, 1e-5))
    rows = x.float() + (offset if has_offset else 0)
    tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    expected = normed(rows, (sizes[1],), eps=1e-5).to(dtype)
    torch.testing.assert_close(statistics.normed, expected, **tolerance)
    whole = mean_and_rstd(row_statistics(rows, sizes[1]), sizes[1], 1e-5)
    torch.testing.assert_close(mean_and_rstd(statistics, sizes[1], 1e-5), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("function", [row_norm_plain, row_norm_triton])
def test_what_does_not_fit_is_refused(function):
    x = torch.zeros(2, 8)
    for rows, offset, message in ((x[:, :4], None, "x has strides"), (x, torch.zeros(4), "offset has shape")):
        with pytest.raises(ValueError, match=message):
            function(rows, offset, NormLinear(x, None, None, 1e-5))
