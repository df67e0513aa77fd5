"""Rows as a norm needs them: what other kernels have summed and the residual it is added to, or rows as they
are, with their statistics and perhaps their norm, in one kernel.

So that no kernel need sum what several GPUs have before it, they can write their parts into each other's
memory. M rows (tokens), E columns, R ranks.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from labkit.kernels.checks import check_tensor
from labkit.kernels.fused_linear import NormLinear, RowStatistics, normalized, row_statistics
from labkit.kernels.triton_runtime import check_launchable, early_launch, tl, triton

BLOCK = 1024  # columns of a program that sums, and of a part of its statistics
ROWS = 4  # of a program that only norms: with fewer, starting programs takes as long as the rows


def residual_sum_plain(
    total: Tensor,  # [M, E]
    residual: Tensor,  # [M, E]
    behind: NormLinear | None = None,
) -> tuple[Tensor, RowStatistics]:  # [M, E]
    """residual + total, and the statistics of its rows for the norm that follows.

    behind: a product whose norm is made of each row as well.
    Plain PyTorch: the oracle of `residual_sum_triton`. Raises ValueError for arguments that do not fit.
    """
    check_residual_sum(total, residual)
    out = residual + total
    statistics = row_statistics(out, out.shape[1])
    return out, statistics if behind is None else statistics._replace(normed=normalized(out, behind))


def residual_sum_triton(
    total: Tensor, residual: Tensor, behind: NormLinear | None = None
) -> tuple[Tensor, RowStatistics]:
    """residual + total [M, E] and the statistics of its rows, in one kernel: of parts of BLOCK columns each,
    or, for a norm, of whole rows.

    Takes and raises what `residual_sum_plain` does, and TritonUnavailableError where no kernel runs.
    """
    check_residual_sum(total, residual)
    check_launchable(total.device)
    out, statistics = room_for(total, behind)
    tensors = total, residual, out, statistics.parts, statistics.normed
    _residual_sum_kernel[statistics.parts.shape[:2]](
        *tensors,
        total.stride(0),
        residual.stride(0),
        total.shape[1],
        0.0 if behind is None else behind.eps,
        BLOCK=statistics.width,
        CENTERED=behind is not None and behind.column_sums is not None,
        num_warps=2 if statistics.width == BLOCK else 8,
        **early_launch(total.device),
    )
    return out, statistics


def room_for(total: Tensor, behind: NormLinear | None) -> tuple[Tensor, RowStatistics]:
    """Room for a result like `total` and its statistics, by the columns that a program has: a whole row where
    a norm is made of it, for which there is room, too."""
    M, E = total.shape
    block = BLOCK if behind is None else max(BLOCK, triton.next_power_of_2(E))
    out = torch.empty(M, E, dtype=total.dtype, device=total.device)
    parts = torch.empty(M, triton.cdiv(E, block), 2, dtype=torch.float32, device=total.device)
    return out, RowStatistics(parts, block, None if behind is None else torch.empty_like(out))


@triton.jit
def _residual_sum_kernel(
    total_ptr, residual_ptr, out_ptr, statistics_ptr, normed_ptr,
    total_stride_m, residual_stride_m,
    E, eps,
    BLOCK: tl.constexpr, CENTERED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    m = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)[:, None]  # in a long chunk, m * E passes 2^31
    e = part * BLOCK + tl.arange(0, BLOCK)[None, :]
    in_row = e < E
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    total = tl.load(total_ptr + m * total_stride_m + e, mask=in_row, other=0.0).to(tl.float32)
    rest = tl.load(residual_ptr + m * residual_stride_m + e, mask=in_row, other=0.0).to(tl.float32)
    total += rest
    _store_with_statistics(total, m, part, e, tl.num_programs(0), E, out_ptr, statistics_ptr, BLOCK)
    if normed_ptr is not None:
        _store_norm(total.to(out_ptr.dtype.element_ty), m, e, E, eps, normed_ptr, CENTERED)


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


@triton.jit
def _store_norm(row, m, e, E, eps, normed_ptr, CENTERED: tl.constexpr):
    """Store the norm of a whole row m, as it was stored."""
    in_row = e < E
    row = tl.where(in_row, row.to(tl.float32), 0.0)
    if CENTERED:
        row = tl.where(in_row, row - tl.sum(row, axis=1, keep_dims=True) / E, 0.0)
    scale = tl.rsqrt(tl.sum(row * row, axis=1, keep_dims=True) / E + eps)
    tl.store(normed_ptr + m * E + e, (row * scale).to(normed_ptr.dtype.element_ty), mask=in_row)


# --- parts in the memory of several GPUs ----------------------------------------------------------------


class PeerParts(NamedTuple):
    """This rank's part of a sum, and where R ranks have room for each other's parts.

    addresses: [R] int64, of each rank's inbox [R, S] int64, in memory that every rank's GPU can reach. A word
    is 4 bytes of a part and the mark that they are there; all words are 0 between launches.
    """

    mine: Tensor  # [M, E], this rank's part
    addresses: Tensor
    room: int  # S: words that the inbox has for each rank
    rank: int


def words_of(num_values: int, dtype: torch.dtype) -> int:
    """The words of an inbox that so many values of a part need."""
    return num_values * dtype.itemsize // 4


def residual_sum_of_peers_triton(
    parts: PeerParts, residual: Tensor, behind: NormLinear | None = None
) -> tuple[Tensor, RowStatistics]:
    """residual + the sum of all ranks' parts [M, E], and the statistics of its rows, in one kernel.

    behind: a product whose norm is made of each row as well: then a program has a whole row.

    Launched by every rank, behind the kernel that writes its part. A program writes its block into the other
    ranks' inboxes, each 4 bytes in one word with the mark, as NCCL's protocol LL does: so no signal has to
    follow. It waits for theirs, however long that takes, and adds them in the order of ranks: the same bits
    on every rank. An inbox may be taken again behind the next such launch, which has another. Raises
    ValueError for arguments that do not fit, and TritonUnavailableError where no kernel runs.
    """
    mine, addresses, room, rank = parts
    check_residual_sum(mine, residual)
    check_tensor("addresses", addresses, shape=(len(addresses),), dtype=torch.int64, device=mine.device)
    for name, each in (("mine", mine), ("residual", residual)):
        check_tensor(name, each, shape=("M", "E"), is_contiguous=True)
    M, E = mine.shape
    if E * mine.itemsize % 4 or words_of(M * E, mine.dtype) > room:
        raise ValueError(f"rows of {E} values must fill words of 4 bytes, {M} of them at most {room} words")
    check_launchable(mine.device)
    out, statistics = room_for(mine, behind)
    _residual_sum_of_peers_kernel[statistics.parts.shape[:2]](
        addresses,
        mine.view(torch.int32),
        residual,
        out,
        statistics.parts,
        out if statistics.normed is None else statistics.normed,
        room,
        E,
        0.0 if behind is None else behind.eps,
        RANK=rank,
        SIZE=len(addresses),
        BLOCK=statistics.width,
        NORM=behind is not None,
        CENTERED=behind is not None and behind.column_sums is not None,
        num_warps=4 if statistics.width == BLOCK else 8,  # a thread has words of its own
        **early_launch(mine.device),
    )
    return out, statistics


@triton.jit
def _residual_sum_of_peers_kernel(
    addresses_ptr, mine_ptr, residual_ptr, out_ptr, statistics_ptr, normed_ptr,
    room, E, eps,
    RANK: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr, CENTERED: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """mine_ptr: of words, in which the part's values are."""
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    PER_WORD: tl.constexpr = 32 // dtype.primitive_bitwidth
    part = tl.program_id(1)
    m = tl.program_id(0) + tl.arange(0, 1)[:, None]
    e = part * BLOCK + tl.arange(0, BLOCK)[None, :]
    in_row = e < E
    w = part * (BLOCK // PER_WORD) + tl.arange(0, BLOCK // PER_WORD)[None, :]
    in_words = w < E // PER_WORD
    word = m * (E // PER_WORD) + w
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    mine = tl.load(mine_ptr + word, mask=in_words, other=0)
    marked = (mine.to(tl.int64) & 0xFFFFFFFF) | 0x100000000
    for other in tl.static_range(SIZE):
        if other != RANK:
            inbox = tl.load(addresses_ptr + other).to(tl.pointer_type(tl.int64)) + RANK * room
            tl.store(inbox + word, marked, mask=in_words)
    total = tl.load(residual_ptr + m * E + e, mask=in_row, other=0.0).to(tl.float32)
    for other in tl.static_range(SIZE):
        if other == RANK:
            total += _floats(mine, dtype, BLOCK)
        else:
            inbox = tl.load(addresses_ptr + RANK).to(tl.pointer_type(tl.int64)) + other * room
            theirs = tl.load(inbox + word, mask=in_words, other=0x100000000, volatile=True)
            while tl.min(tl.min(theirs >> 32, axis=1), axis=0) == 0:
                theirs = tl.load(inbox + word, mask=in_words, other=0x100000000, volatile=True)
            tl.store(inbox + word, tl.zeros_like(theirs), mask=in_words)
            total += _floats(theirs.to(tl.int32), dtype, BLOCK)
    _store_with_statistics(total, m, part, e, tl.num_programs(0), E, out_ptr, statistics_ptr, BLOCK)
    if NORM:
        _store_norm(total.to(dtype), m, e, E, eps, normed_ptr, CENTERED)


@triton.jit
def _floats(words, dtype: tl.constexpr, BLOCK: tl.constexpr):
    """The values [1, BLOCK] in words [1, BLOCK / 2] of two, or [1, BLOCK] of one."""
    if dtype.primitive_bitwidth == 32:
        values = words.to(dtype, bitcast=True)
    else:
        low = words.to(tl.int16).to(dtype, bitcast=True)
        high = (words >> 16).to(tl.int16).to(dtype, bitcast=True)
        values = tl.reshape(tl.join(low, high), [1, BLOCK])
    return values.to(tl.float32)


def check_residual_sum(total: Tensor, residual: Tensor) -> None:
    """Raises ValueError naming the first argument whose shape, stride, dtype or device does not fit."""
    check_tensor("total", total, shape=("M", "E"), last_stride_is_1=True)
    like_total = {"dtype": total.dtype, "device": total.device, "last_stride_is_1": True}
    check_tensor("residual", residual, shape=tuple(total.shape), **like_total)


# --- rows as they are -----------------------------------------------------------------------------------


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
