"""A linear layer, the residual it is added to and the statistics of its rows, in one kernel.

M rows (one new token per request), K inputs, N outputs, as in `fused_linear`.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.kernels.checks import check_tensor
from labkit.kernels.fused_linear import RowStatistics, check_linear, check_offsets, row_statistics
from labkit.kernels.ring_linear import _residual_ring_kernel, launch_ring
from labkit.kernels.tile_product import held_weights, prefetch_rows, product_options, tile_product
from labkit.kernels.tiles import (
    NOTHING_MEASURED,
    NUM_PARTIALS,
    NUM_SHARED_TILES,
    MeasuredTiles,
    Tile,
    check_tile,
    default_tile,
    num_partials_of,
)
from labkit.kernels.triton_runtime import check_launchable, tl, triton


class SplitKWorkspace(NamedTuple):
    """Where programs that share a tile leave their partial sums.

    For one launch at a time, as in one stream: two at once would count each other's parts, add up what is
    not there yet, and leave a wrong count for all later launches.
    """

    partials: Tensor  # [at least tiles * split_k * block_m * block_n] float32
    counters: Tensor  # [at least tiles] int32: the parts that have arrived; 0 between launches


def make_split_k_workspace(
    device: torch.device, num_partials: int = NUM_PARTIALS, num_tiles: int = NUM_SHARED_TILES
) -> SplitKWorkspace:
    """A workspace on `device` with its counters at 0.

    num_partials: float32 partial sums it has room for; by default 8 MiB, where 256 rows of GPT-2 124M with
    each sum in 8 parts need 6. num_tiles: tiles that may be shared in one launch.
    """
    with torch.inference_mode(False):  # or its counters could not be set outside of inference mode
        return SplitKWorkspace(
            torch.empty(num_partials, dtype=torch.float32, device=device),
            torch.zeros(num_tiles, dtype=torch.int32, device=device),
        )


def linear_residual_plain(
    x: Tensor,  # [M, K]
    weight: Tensor,  # [N, K]
    bias: Tensor | None,  # [N]
    residual: Tensor,  # [M, N]
) -> tuple[Tensor, RowStatistics]:  # [M, N]
    """residual + linear(x), and the statistics of its rows for the LayerNorm that follows.

    Plain PyTorch: the oracle of `linear_residual_triton`. Raises ValueError for arguments that do not fit.
    """
    check_linear_residual(x, weight, bias, residual)
    out = residual + F.linear(x, weight, bias)
    return out, row_statistics(out, out.shape[1])


def linear_residual_triton(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    *,
    tile: Tile | None = None,
    measured: MeasuredTiles = NOTHING_MEASURED,
    workspace: SplitKWorkspace | None = None,
    prefetch: bool = False,
) -> tuple[Tensor, RowStatistics]:
    """residual + linear(x) [M, N] and the statistics of its rows, in one kernel; the sum is float32 up to its
    end, where `linear_residual_plain` rounds twice.

    With tile.split_k > 1 each program sums a part of the inputs, and the last to arrive adds up the parts,
    always in the same order: the same arguments give the same bits. tile: None picks it by the sizes and the
    GPU, from `measured` where that has one. workspace: for calls that follow each other; without one, each
    call makes its own. prefetch: where a program can wait for x, its weights come into the L2 cache
    meanwhile. Raises ValueError for arguments that do not fit, and TritonUnavailableError where no kernel
    runs.
    """
    check_linear_residual(x, weight, bias, residual)
    check_launchable(x.device)
    (M, K), N = x.shape, len(weight)
    tile = check_tile(tile or default_tile(x, weight, measured, can_split=True), can_split=True)
    grid = (triton.cdiv(M, tile.block_m), triton.cdiv(N, tile.block_n), tile.split_k)
    partials = counters = None
    if tile.split_k > 1:
        num_tiles = grid[0] * grid[1]
        workspace = workspace or make_split_k_workspace(x.device, num_partials_of(num_tiles, tile), num_tiles)
        check_workspace(workspace, x.device, num_tiles, tile)
        partials, counters = workspace
    out = torch.empty(M, N, dtype=x.dtype, device=x.device)
    statistics = torch.empty(M, grid[1], 2, dtype=torch.float32, device=x.device)
    behind_weight = bias, residual, out, statistics, partials, counters
    if tile.ring:
        ring = _residual_ring_kernel, tile, x, weight
        launch_ring(*ring, *behind_weight, residual.stride(0), M, N, K, SPLIT_K=tile.split_k)
        return out, RowStatistics(statistics, tile.block_n)
    try:
        _linear_residual_kernel[grid](
            x,
            weight,
            *behind_weight,
            x.stride(0),
            residual.stride(0),
            M,
            N,
            K,
            SPLIT_K=tile.split_k,
            **product_options(tile, x, weight, prefetch),
        )
    except BaseException:  # the interpreter, stopped between two parts of a tile
        if counters is not None:
            counters.zero_()
        raise
    return out, RowStatistics(statistics, tile.block_n)


@triton.jit(do_not_specialize=["M"])
def _linear_residual_kernel(
    x_ptr, weight_ptr, bias_ptr, residual_ptr, out_ptr, statistics_ptr, partials_ptr, counters_ptr,
    x_stride_m, residual_stride_m,
    M, N,
    K: tl.constexpr, UPCAST: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr, HELD: tl.constexpr, PREFETCH: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_m, in_n = m < M, n < N
    in_tile = in_m[:, None] & in_n[None, :]
    x_rows = x_ptr + m[:, None] * x_stride_m
    weight_rows = weight_ptr + n[:, None] * K
    K_PER_PART: tl.constexpr = (K + BLOCK_K * SPLIT_K - 1) // (BLOCK_K * SPLIT_K) * BLOCK_K
    part = tl.program_id(2)
    first = part * K_PER_PART
    held = held_weights(weight_rows, in_n, first, K_PER_PART, K, BLOCK_K, HELD)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        if PREFETCH:
            prefetch_rows(weight_ptr, n, first, K_PER_PART, N, K)
        tl.extra.cuda.gdc_wait()
    # Asked for first, so that nothing is waited for once the sum is there.
    rest = tl.load(residual_ptr + m[:, None] * residual_stride_m + n[None, :], mask=in_tile, other=0.0)
    rest = rest.to(tl.float32)
    if bias_ptr is not None:
        rest += tl.load(bias_ptr + n, mask=in_n, other=0.0).to(tl.float32)[None, :]
    acc = tile_product(
        x_rows, in_m, weight_rows, in_n, held, first, K_PER_PART, K, BLOCK_M, BLOCK_N, BLOCK_K, HELD, UPCAST
    )
    if SPLIT_K == 1:
        _store_with_statistics(acc + rest, m, n, in_m, in_n, out_ptr, statistics_ptr, N)
    else:
        tile = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        within = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        parts = partials_ptr + tile * (SPLIT_K * BLOCK_M * BLOCK_N) + within
        # .cg: in the cache that all multiprocessors share
        tl.store(parts + part * (BLOCK_M * BLOCK_N), acc, mask=in_tile, cache_modifier=".cg")
        tl.debug_barrier()  # every thread has stored before one of them counts the part as arrived
        arrived = tl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu")
        if arrived == SPLIT_K - 1:  # all others had arrived
            total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            for i in tl.static_range(SPLIT_K):
                total += tl.load(
                    parts + i * (BLOCK_M * BLOCK_N), mask=in_tile, other=0.0, cache_modifier=".cg"
                )
            _store_with_statistics(total + rest, m, n, in_m, in_n, out_ptr, statistics_ptr, N)
            tl.store(counters_ptr + tile, 0)  # for the next launch


@triton.jit
def _store_with_statistics(out, m, n, in_m, in_n, out_ptr, statistics_ptr, N):
    """Store a tile, and of each row in it the mean and the squared distances of what is stored."""
    rounded = out.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + m[:, None] * N + n[None, :], rounded, mask=in_m[:, None] & in_n[None, :])
    stored = tl.where(in_n[None, :], rounded.to(tl.float32), 0.0)
    mean = tl.sum(stored, axis=1) / tl.sum(in_n.to(tl.float32), axis=0)
    apart = tl.where(in_n[None, :], stored - mean[:, None], 0.0)
    place = statistics_ptr + (m * tl.num_programs(1) + tl.program_id(1)) * 2
    tl.store(place, mean, mask=in_m)
    tl.store(place + 1, tl.sum(apart * apart, axis=1), mask=in_m)


def check_workspace(workspace: SplitKWorkspace, device: torch.device, num_tiles: int, tile: Tile) -> None:
    """Raises ValueError if a workspace is elsewhere, or has no room for a launch of `num_tiles` shared
    tiles."""
    partials, counters = workspace
    num_partials = num_partials_of(num_tiles, tile)
    if num_partials > 2**31:
        raise ValueError(f"{tile} needs {num_partials} partial sums, which offsets of 32 bits do not reach")
    contiguous = {"device": device, "last_stride_is_1": True}
    check_tensor("workspace.partials", partials, shape=("P",), dtype=torch.float32, **contiguous)
    check_tensor("workspace.counters", counters, shape=("C",), dtype=torch.int32, **contiguous)
    if len(partials) < num_partials or len(counters) < num_tiles:
        raise ValueError(
            f"workspace is too small: {tile} needs {num_partials} partials, {num_tiles} counters"
        )


def check_linear_residual(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> None:
    """Raises ValueError naming the first argument whose shape, stride, dtype or device does not fit."""
    check_linear(x, weight, bias)
    M, N = len(x), len(weight)
    check_tensor("residual", residual, shape=(M, N), dtype=x.dtype, device=x.device, last_stride_is_1=True)
    check_offsets("residual", residual)
