"""A sum and its residual against the plain twin, and rows behind a norm against PyTorch's norms."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from fused_linear_cases import TOLERANCE
from triton_marks import devices, dtypes, needs_triton

from labkit.kernels.fused_linear import NormLinear, RowStatistics, mean_and_rstd, row_statistics
from labkit.kernels.residual_sum import (
    PeerParts,
    residual_sum_of_peers_triton,
    residual_sum_plain,
    residual_sum_triton,
    row_norm_plain,
    row_norm_triton,
    words_of,
)

# The norm of the product behind a sum: none, or by whether it has column sums, and so a mean.
NORMS = {"none": None, "RMS": (None,), "layer": (torch.zeros(1),)}
norms = pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)


def product_behind(norm: tuple[torch.Tensor | None] | None, width: int) -> NormLinear | None:
    return None if norm is None else NormLinear(torch.empty(0, width), *norm, None, 1e-5)


@needs_triton
@devices
@dtypes
@norms
@pytest.mark.parametrize("function", [residual_sum_plain, residual_sum_triton])
@pytest.mark.parametrize("sizes", [(1, 16), (3, 1600), (2, 2048)], ids=str)
def test_it_is_the_sum_with_its_rows_statistics_and_the_norm_of_what_is_stored(
    sizes: tuple[int, int], function, norm: tuple | None, dtype: torch.dtype, device: str
):
    torch.manual_seed(0)
    total, residual = torch.randn(2, *sizes, device=device).to(dtype)
    out, statistics = function(total, residual, product_behind(norm, sizes[1]))
    close = partial(torch.testing.assert_close, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    close(out, (total.float() + residual.float()).to(dtype))
    assert_statistics_and_norm_of(out, statistics, norm)


def assert_statistics_and_norm_of(
    out: torch.Tensor, statistics: RowStatistics, norm: tuple[torch.Tensor | None] | None
) -> None:
    """They are of the rows out, and so is the norm that came with them, if one did."""
    width = out.shape[1]
    close = partial(torch.testing.assert_close, rtol=TOLERANCE[out.dtype], atol=TOLERANCE[out.dtype])
    close(mean_and_rstd(statistics, width, 1e-5), mean_and_rstd(row_statistics(out, width), width, 1e-5))
    if norm is not None:
        normed = F.rms_norm if norm == (None,) else F.layer_norm
        close(statistics.normed, normed(out.float(), (width,), eps=1e-5).to(out.dtype))


def with_peers(
    mine: torch.Tensor, theirs: torch.Tensor, rank: int
) -> tuple[PeerParts, torch.Tensor]:  # what this rank has, and both inboxes [2, 2, S]
    """One of two ranks, and the other's part in its inbox already."""
    room = words_of(mine.numel(), mine.dtype) + 3
    inboxes = torch.zeros(2, 2, room, dtype=torch.int64, device=mine.device)
    inboxes[rank, 1 - rank, : room - 3] = marked(theirs)
    addresses = torch.tensor([inbox.data_ptr() for inbox in inboxes], device=mine.device)
    return PeerParts(mine, addresses, room, rank), inboxes


def marked(part: torch.Tensor) -> torch.Tensor:
    """The words of a part, as another rank writes them."""
    return part.flatten().view(torch.int32).long() & 0xFFFFFFFF | 1 << 32


@pytest.mark.slow
@needs_triton
@devices
@dtypes
@norms
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("sizes", [(1, 16), (3, 1600), (9, 24)], ids=str)
def test_parts_of_peers_are_summed_when_they_are_there(
    sizes: tuple[int, int], rank: int, norm: tuple | None, dtype: torch.dtype, device: str
):
    torch.manual_seed(0)
    mine, theirs, residual = torch.randn(3, *sizes, device=device).to(dtype)
    parts, inboxes = with_peers(mine, theirs, rank)
    out, statistics = residual_sum_of_peers_triton(parts, residual, product_behind(norm, sizes[1]))
    close = partial(torch.testing.assert_close, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    close(out, residual_sum_plain(mine + theirs, residual)[0])
    assert_statistics_and_norm_of(out, statistics, norm)
    assert not inboxes[rank].any()  # taken
    assert inboxes[1 - rank, rank, :-3].equal(marked(mine))  # told
    assert not inboxes[1 - rank, rank, -3:].any() and not inboxes[1 - rank, 1 - rank].any()


def test_parts_that_do_not_fit_the_room_are_refused():
    mine, addresses = torch.zeros(2, 16), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="2 of them at most 31 words"):
        residual_sum_of_peers_triton(PeerParts(mine, addresses, 31, 0), mine)
    mine = mine[:, :15].half()
    with pytest.raises(ValueError, match="mine has strides"):
        residual_sum_of_peers_triton(PeerParts(mine[:, :14], addresses, 64, 0), mine[:, :14])
    with pytest.raises(ValueError, match="rows of 15 values must fill words of 4 bytes"):
        residual_sum_of_peers_triton(PeerParts(mine.clone(), addresses, 64, 0), mine.clone())


@pytest.mark.parametrize("function", [residual_sum_plain, residual_sum_triton])
def test_rows_that_do_not_fit_are_refused(function):
    with pytest.raises(ValueError, match=r"residual has shape \[2, 8\], expected \[2, 16\]"):
        function(torch.zeros(2, 16), torch.zeros(2, 8))


# --- rows as they are ------------------------------------------------------------------------------


@needs_triton
@devices
@dtypes
@pytest.mark.parametrize("norm", [NORMS["RMS"], NORMS["layer"]], ids=["RMS", "layer"])
@pytest.mark.parametrize("has_offset", [False, True])
@pytest.mark.parametrize("function", [row_norm_plain, row_norm_triton])
@pytest.mark.parametrize("sizes", [(1, 16), (5, 1600), (8, 64)], ids=str)
def test_it_is_the_norm_of_the_rows_and_their_offset_with_their_statistics(
    sizes: tuple[int, int], function, has_offset: bool, norm: tuple, dtype: torch.dtype, device: str
):
    torch.manual_seed(0)
    x = torch.randn(*sizes, device=device).to(dtype) + 1
    offset = torch.randn(sizes[1], device=device) if has_offset else None
    statistics = function(x, offset, product_behind(norm, sizes[1]))
    rows = x.float() + (offset if has_offset else 0)
    tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    normed = F.rms_norm if norm == (None,) else F.layer_norm
    expected = normed(rows, (sizes[1],), eps=1e-5).to(dtype)
    torch.testing.assert_close(statistics.normed, expected, **tolerance)
    whole = mean_and_rstd(row_statistics(rows, sizes[1]), sizes[1], 1e-5)
    torch.testing.assert_close(mean_and_rstd(statistics, sizes[1], 1e-5), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("function", [row_norm_plain, row_norm_triton])
def test_rows_to_norm_that_do_not_fit_are_refused(function):
    x = torch.zeros(2, 8)
    for rows, offset, message in ((x[:, :4], None, "x has strides"), (x, torch.zeros(4), "offset has shape")):
        with pytest.raises(ValueError, match=message):
            function(rows, offset, NormLinear(x, None, None, 1e-5))
