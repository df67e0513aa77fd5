"""What other kernels have summed, the residual it is added to, and the statistics of its rows, in one kernel.

So that no kernel need sum what several GPUs have before it, it can read their parts from their memory.
M rows (one new token per request), E columns, R ranks.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from labkit.kernels.checks import check_tensor
from labkit.kernels.fused_linear import RowStatistics, row_statistics
from labkit.kernels.triton_runtime import check_launchable, early_launch, tl, triton

BLOCK = 1024  # columns of a program, and of a part of the statistics
FEW_BLOCKS, MOST_ROWS = (
    8,
    8,
)  # of rows that peers signal: a signal takes longer than to read a row; in a block


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
    part = tl.program_id(1)
    m = tl.program_id(0) + tl.arange(0, 1)[:, None]
    e = part * BLOCK + tl.arange(0, BLOCK)[None, :]
    in_row = e < E
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    total = tl.load(total_ptr + m * total_stride_m + e, mask=in_row, other=0.0).to(tl.float32)
    rest = tl.load(residual_ptr + m * residual_stride_m + e, mask=in_row, other=0.0).to(tl.float32)
    _store_with_statistics(total + rest, m, part, e, tl.num_programs(0), E, out_ptr, statistics_ptr, BLOCK)


@triton.jit
def _store_with_statistics(out, m, part, e, M, E, out_ptr, statistics_ptr, BLOCK: tl.constexpr):
    """Store a part of rows m, and of each the mean and the squared distances of what is stored."""
    in_tile = (m < M) & (e < E)
    rounded = out.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + m * E + e, rounded, mask=in_tile)
    stored = tl.where(in_tile, rounded.to(tl.float32), 0.0)
    mean = tl.sum(stored, axis=1, keep_dims=True) / tl.minimum(E - part * BLOCK, BLOCK)
    apart = tl.where(in_tile, stored - mean, 0.0)
    place = statistics_ptr + (m * tl.num_programs(1) + part) * 2
    tl.store(place, mean, mask=m < M)
    tl.store(place + 1, tl.sum(apart * apart, axis=1, keep_dims=True), mask=m < M)


# --- parts in the memory of several GPUs ----------------------------------------------------------------


class PeerParts(NamedTuple):
    """Where each of R ranks leaves its part of a sum, and where it says so.

    addresses, signals: [R] int64, of memory that every rank's GPU can reach: of the ranks' parts [M, E], and
    of their signals [M, P, R] int32 for P parts of BLOCK columns, which are 0 between launches.
    """

    mine: Tensor  # [M, E], this rank's part
    addresses: Tensor
    signals: Tensor
    rank: int


def residual_sum_of_peers_triton(parts: PeerParts, residual: Tensor) -> tuple[Tensor, RowStatistics]:
    """residual + the sum of all ranks' parts [M, E], and the statistics of its rows, in one kernel.

    Launched by every rank, behind the kernel that writes its part. A program tells the others that its block
    is there, waits until theirs are, however long that takes, and adds them in the order of ranks: the same
    bits on every rank. The parts may be written again behind the next such launch, which has other parts and
    the same signals. Raises ValueError for arguments that do not fit, and TritonUnavailableError where no
    kernel runs.
    """
    mine, addresses, signals, rank = parts
    check_residual_sum(mine, residual)
    for name, each in (("addresses", addresses), ("signals", signals)):
        check_tensor(name, each, shape=(len(addresses),), dtype=torch.int64, device=mine.device)
    if not mine.is_contiguous():
        raise ValueError(f"mine has strides {mine.stride()}, expected contiguous")
    check_launchable(mine.device)
    M, E = mine.shape
    num_parts = triton.cdiv(E, BLOCK)
    out = torch.empty_like(mine)
    statistics = torch.empty(M, num_parts, 2, dtype=torch.float32, device=mine.device)
    rows = min(MOST_ROWS, triton.next_power_of_2(triton.cdiv(M, FEW_BLOCKS)))
    _residual_sum_of_peers_kernel[(triton.cdiv(M, rows), num_parts)](
        addresses,
        signals,
        residual,
        out,
        statistics,
        residual.stride(0),
        M,
        E,
        RANK=rank,
        SIZE=len(addresses),
        ROWS=rows,
        BLOCK=BLOCK,
        num_warps=4 if rows == 1 else 8,
        **early_launch(mine.device),
    )
    return out, RowStatistics(statistics, BLOCK)


@triton.jit(do_not_specialize=["M"])
def _residual_sum_of_peers_kernel(
    addresses_ptr,
    signals_ptr,
    residual_ptr,
    out_ptr,
    statistics_ptr,
    residual_stride_m,
    M,
    E,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    part = tl.program_id(1)
    block = tl.program_id(0) * tl.num_programs(1) + part
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    e = part * BLOCK + tl.arange(0, BLOCK)[None, :]
    in_tile = (m < M) & (e < E)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    for other in tl.static_range(SIZE):  # mine is there
        if other != RANK:
            signal = tl.load(signals_ptr + other).to(tl.pointer_type(tl.int32)) + block * SIZE + RANK
            while tl.atomic_cas(signal, 0, 1, sem="release", scope="sys") != 0:
                pass  # the signal before was not seen yet
    for other in tl.static_range(SIZE):  # are theirs?
        if other != RANK:
            signal = tl.load(signals_ptr + RANK).to(tl.pointer_type(tl.int32)) + block * SIZE + other
            while tl.atomic_cas(signal, 1, 0, sem="acquire", scope="sys") != 1:
                pass
    tl.debug_barrier()  # one thread has looked; none reads before
    total = tl.load(residual_ptr + m * residual_stride_m + e, mask=in_tile, other=0.0).to(tl.float32)
    for other in tl.static_range(SIZE):
        theirs = tl.load(addresses_ptr + other).to(tl.pointer_type(out_ptr.dtype.element_ty))
        # .cg: not from this multiprocessor's own cache
        total += tl.load(theirs + m * E + e, mask=in_tile, other=0.0, cache_modifier=".cg").to(tl.float32)
    _store_with_statistics(total, m, part, e, M, E, out_ptr, statistics_ptr, BLOCK)


def check_residual_sum(total: Tensor, residual: Tensor) -> None:
    """Raises ValueError naming the first argument whose shape, stride, dtype or device does not fit."""
    check_tensor("total", total, shape=("M", "E"), last_stride_is_1=True)
    like_total = {"dtype": total.dtype, "device": total.device, "last_stride_is_1": True}
    check_tensor("residual", residual, shape=tuple(total.shape), **like_total)
