"""A sum and its residual, against the plain twin."""

from functools import partial

import pytest
import torch
from fused_linear_cases import TOLERANCE, devices, dtypes, needs_triton

from labkit.kernels.fused_linear import mean_and_rstd
from labkit.kernels.residual_sum import (
    BLOCK,
    PeerParts,
    residual_sum_of_peers_triton,
    residual_sum_plain,
    residual_sum_triton,
)


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


def two_ranks(parts: torch.Tensor, signals: torch.Tensor) -> list[PeerParts]:
    """As each of them has it. parts: [2, M, E]. signals: [2, M, P, 2]."""
    addresses, places = (
        torch.tensor([each.data_ptr() for each in both], device=parts.device) for both in (parts, signals)
    )
    return [PeerParts(parts[rank], addresses, places, rank) for rank in range(2)]


def num_blocks(M: int, E: int) -> int:
    rows = 1 if M <= 8 else 4
    return -(-M // rows) * -(-E // BLOCK)


@needs_triton
@devices
@dtypes
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("sizes", [(1, 16), (3, 1600), (19, 24)], ids=str)  # the last in blocks of 4 rows
def test_parts_of_peers_are_summed_when_they_are_there(
    sizes: tuple[int, int], rank: int, dtype: torch.dtype, device: str
):
    torch.manual_seed(0)
    *parts, residual = torch.randn(3, *sizes, device=device).to(dtype)
    signals = torch.zeros(2, sizes[0], -(-sizes[1] // BLOCK), 2, dtype=torch.int32, device=device)
    blocks = signals.flatten(1, 2)[:, : num_blocks(*sizes)]
    blocks[rank, :, 1 - rank] = 1  # the other's part is there
    out, statistics = residual_sum_of_peers_triton(two_ranks(torch.stack(parts), signals)[rank], residual)
    expected, theirs = residual_sum_plain(sum(parts), residual)
    close = partial(torch.testing.assert_close, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    close(out, expected)
    close(mean_and_rstd(statistics, sizes[1], 1e-5), mean_and_rstd(theirs, sizes[1], 1e-5))
    assert not signals[rank].any()  # seen
    assert blocks[1 - rank, :, rank].all() and not signals[1 - rank, ..., 1 - rank].any()  # told


@pytest.mark.parametrize("function", [residual_sum_plain, residual_sum_triton])
def test_rows_that_do_not_fit_are_refused(function):
    with pytest.raises(ValueError, match=r"residual has shape \[2, 8\], expected \[2, 16\]"):
        function(torch.zeros(2, 16), torch.zeros(2, 8))
