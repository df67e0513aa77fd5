"""What other kernels have summed, the residual it is added to, and the statistics of its rows, in one kernel.

M rows (one new token per request), E columns.
"""

import torch
from torch import Tensor

from labkit.kernels.checks import check_tensor
from labkit.kernels.fused_linear import RowStatistics, row_statistics
from labkit.kernels.triton_runtime import check_launchable, early_launch, tl, triton

BLOCK = 1024  # columns of a program, and of a part of the statistics


def residual_sum_plain(
    total: Tensor,  # [M, E]
    residual: Tensor,  # [M, E]
) -> tuple[Tensor, RowStatistics]:  # [M, E]
    """residual + total, and the statistics of its rows for the norm that follows.

    Plain PyTorch: the oracle of `residual_sum_triton`. Raises ValueError for arguments that do not fit.
    """
    check_residual_sum(total, residual)
    out = residual + total
    return out, row_statistics(out, out.shape[1])


def residual_sum_triton(total: Tensor, residual: Tensor) -> tuple[Tensor, RowStatistics]:
    """residual + total [M, E] and the statistics of its rows, in parts of BLOCK columns, in one kernel.

    Takes what `residual_sum_plain` takes. Raises ValueError for arguments that do not fit, and
    TritonUnavailableError where no kernel runs.
    """
    check_residual_sum(total, residual)
    check_launchable(total.device)
    M, E = total.shape
    num_parts = triton.cdiv(E, BLOCK)
    out = torch.empty(M, E, dtype=total.dtype, device=total.device)
    statistics = torch.empty(M, num_parts, 2, dtype=torch.float32, device=total.device)
    _residual_sum_kernel[(M, num_parts)](
        total,
        residual,
        out,
        statistics,
        total.stride(0),
        residual.stride(0),
        E,
        BLOCK=BLOCK,
        **early_launch(total.device),
    )
    return out, RowStatistics(statistics, BLOCK)


@triton.jit
def _residual_sum_kernel(
    total_ptr,
    residual_ptr,
    out_ptr,
    statistics_ptr,
    total_stride_m,
    residual_stride_m,
    E,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    m, part = tl.program_id(0), tl.program_id(1)
    e = part * BLOCK + tl.arange(0, BLOCK)
    in_row = e < E
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    total = tl.load(total_ptr + m * total_stride_m + e, mask=in_row, other=0.0).to(tl.float32)
    rest = tl.load(residual_ptr + m * residual_stride_m + e, mask=in_row, other=0.0).to(tl.float32)
    rounded = (total + rest).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + m * E + e, rounded, mask=in_row)
    stored = rounded.to(tl.float32)
    mean = tl.sum(stored, axis=0) / tl.minimum(E - part * BLOCK, BLOCK)
    apart = tl.where(in_row, stored - mean, 0.0)
    place = statistics_ptr + (m * tl.num_programs(1) + part) * 2
    tl.store(place, mean)
    tl.store(place + 1, tl.sum(apart * apart, axis=0))


def check_residual_sum(total: Tensor, residual: Tensor) -> None:
    """Raises ValueError naming the first argument whose shape, stride, dtype or device does not fit."""
    check_tensor("total", total, shape=("M", "E"), last_stride_is_1=True)
    like_total = {"dtype": total.dtype, "device": total.device, "last_stride_is_1": True}
    check_tensor("residual", residual, shape=tuple(total.shape), **like_total)
