"""The statistics of rows, and the rows behind a norm, in one kernel.

M rows (tokens of a chunk), E columns.
"""

import torch
from torch import Tensor

from labkit.kernels.checks import check_tensor
from labkit.kernels.fused_linear import NormLinear, RowStatistics, normalized, row_statistics
from labkit.kernels.triton_runtime import check_launchable, early_launch, tl, triton

ROWS = 4  # of a program: with fewer, starting programs takes as long as the rows


def row_norm_plain(
    x: Tensor,  # [M, E]
    offset: Tensor | None,  # [E] float32
    behind: NormLinear,
) -> RowStatistics:
    """The statistics of the rows x + offset, and `normed`, the norm that stands before a product of them.

    Plain PyTorch: the oracle of `row_norm_triton`. Raises ValueError for arguments that do not fit.
    """
    check_row_norm(x, offset)
    rows = x.float() if offset is None else x.float() + offset
    return row_statistics(rows, x.shape[1])._replace(normed=normalized(rows, behind).to(x.dtype))


def row_norm_triton(x: Tensor, offset: Tensor | None, behind: NormLinear) -> RowStatistics:
    """The statistics of the rows x + offset, and their norm, in one kernel; what is stored is rounded once.

    Takes and raises what `row_norm_plain` does, and TritonUnavailableError where no kernel runs.
    """
    check_row_norm(x, offset)
    check_launchable(x.device)
    M, E = x.shape
    block = triton.next_power_of_2(E)
    parts = torch.empty(M, 1, 2, dtype=torch.float32, device=x.device)
    normed = torch.empty_like(x)
    _row_norm_kernel[(triton.cdiv(M, ROWS),)](
        x,
        offset,
        parts,
        normed,
        M,
        E,
        behind.eps,
        ROWS=ROWS,
        BLOCK=block,
        CENTERED=behind.column_sums is not None,
        num_warps=min(max(4, block // 512), 16),  # of a wider row, a thread has no more values
        **early_launch(x.device),
    )
    return RowStatistics(parts, E, normed)


@triton.jit(do_not_specialize=["M"])
def _row_norm_kernel(
    x_ptr, offset_ptr, statistics_ptr, normed_ptr,
    M, E, eps,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, CENTERED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    # int64: in a long chunk, m * E passes 2^31
    m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    e = tl.arange(0, BLOCK)[None, :]
    in_row = e < E
    in_tile = (m < M) & in_row
    row = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    if offset_ptr is not None:
        row += tl.load(offset_ptr + e, mask=in_row, other=0.0)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row += tl.load(x_ptr + m * E + e, mask=in_tile, other=0.0).to(tl.float32)
    mean = tl.sum(row, axis=1, keep_dims=True) / E
    apart = tl.where(in_row, row - mean, 0.0)
    squares = tl.sum(apart * apart, axis=1, keep_dims=True)
    tl.store(statistics_ptr + m * 2, mean, mask=m < M)
    tl.store(statistics_ptr + m * 2 + 1, squares, mask=m < M)
    if CENTERED:
        row = apart
    else:
        squares += E * mean * mean
    normed = row * tl.rsqrt(squares / E + eps)
    tl.store(normed_ptr + m * E + e, normed.to(normed_ptr.dtype.element_ty), mask=in_tile)


def check_row_norm(x: Tensor, offset: Tensor | None) -> None:
    """Raises ValueError naming the first argument whose shape, stride, dtype or device does not fit."""
    check_tensor("x", x, shape=("M", "E"), is_contiguous=True)
    if offset is not None:
        check_tensor(
            "offset", offset, shape=x.shape[1:], dtype=torch.float32, device=x.device, is_contiguous=True
        )
