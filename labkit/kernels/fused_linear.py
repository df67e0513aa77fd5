"""The linear layers of a GPT-2 block, each in one kernel with what stands before or behind it.

M rows (one new token a request), K inputs, N outputs. With one row or with 256 the weights are read once,
and that takes the time: so there are many programs, each with a tile of the result and its share of the
weights. The normalized rows, and the products before bias, GELU and residual, never reach memory.
"""

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.kernels.checks import check_tensor
from labkit.kernels.triton_runtime import INTERPRETED, check_launchable, tl, triton

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


# --- how a product is cut into programs -----------------------------------------------------------------


class Tile(NamedTuple):
    """A program makes [block_m, block_n] outputs, block_k inputs at a time; split_k programs share a tile."""

    block_m: int
    block_n: int
    block_k: int
    split_k: int
    num_warps: int
    num_stages: int


ENOUGH_PROGRAMS = 100  # of an H100's 132 multiprocessors: with fewer, the weights come too slowly

# (N, K) of GPT-2 124M: (the most rows, their tile), from few rows to many. Reasoned, not yet measured.
TILES: dict[tuple[int, int], tuple[tuple[int, Tile], ...]] = {
    (2304, 768): (  # queries, keys and values, after the first LayerNorm
        (16, Tile(16, 16, 256, 1, 4, 4)),
        (32, Tile(32, 32, 256, 1, 4, 3)),
        (64, Tile(64, 32, 128, 1, 4, 4)),
        (128, Tile(64, 32, 128, 1, 4, 4)),
        (256, Tile(64, 64, 128, 1, 4, 3)),
    ),
    (3072, 768): (  # the first half of the MLP, after the second LayerNorm
        (16, Tile(16, 32, 256, 1, 4, 4)),
        (32, Tile(32, 32, 256, 1, 4, 3)),
        (64, Tile(64, 32, 128, 1, 4, 4)),
        (128, Tile(64, 64, 128, 1, 4, 3)),
        (256, Tile(64, 64, 128, 1, 4, 3)),
    ),
    (768, 768): (  # attention's output projection
        (16, Tile(16, 32, 128, 6, 4, 2)),
        (32, Tile(32, 32, 128, 6, 4, 2)),
        (64, Tile(64, 32, 128, 6, 4, 2)),
        (128, Tile(64, 32, 128, 3, 4, 3)),
        (256, Tile(64, 64, 128, 3, 4, 3)),
    ),
    (768, 3072): (  # the second half of the MLP
        (16, Tile(16, 64, 128, 12, 4, 3)),
        (32, Tile(32, 64, 128, 12, 4, 3)),
        (64, Tile(64, 64, 128, 8, 4, 4)),
        (128, Tile(64, 64, 128, 6, 4, 4)),
        (256, Tile(64, 64, 128, 3, 4, 4)),
    ),
}


def tile_of(M: int, N: int, K: int, *, can_split: bool = True) -> Tile:
    """The tile of a product [M, K] x [K, N]: from the table, else the widest that makes enough programs.

    can_split: whether several programs may share a tile, each with a part of the inputs.
    """
    for most_rows, tile in TILES.get((N, K), ()):
        if most_rows >= M and (can_split or tile.split_k == 1):
            return tile
    block_m = next((block_m for block_m in (16, 32) if block_m >= M), 64)
    block_k = min(128, max(16, 1 << (K - 1).bit_length()))  # a power of 2
    num_blocks_k = -(-K // block_k)
    num_stages = min(4, num_blocks_k + 1)

    def programs(block_n: int) -> int:
        return -(-M // block_m) * -(-N // block_n)

    for block_n in (64, 32):
        if programs(block_n) >= ENOUGH_PROGRAMS:
            return Tile(block_m, block_n, block_k, 1, 4, num_stages)
    block_n = 32 if can_split and num_blocks_k > 1 else 16
    split_k = min(-(-ENOUGH_PROGRAMS // programs(block_n)), num_blocks_k, 8) if can_split else 1
    return Tile(block_m, block_n, block_k, split_k, 4, num_stages)


# --- LayerNorm, linear, GELU ----------------------------------------------------------------------------


def layer_norm_linear_plain(
    x: Tensor,  # [M, K]
    norm_weight: Tensor,  # [K]
    norm_bias: Tensor,  # [K]
    eps: float,
    weight: Tensor,  # [N, K]
    bias: Tensor | None,  # [N]
    gelu: bool = False,
) -> Tensor:  # [M, N]
    """linear(layer_norm(x)), then GELU by its tanh formula if asked for: two or three kernels."""
    check_layer_norm_linear(x, norm_weight, norm_bias, weight, bias)
    out = F.linear(F.layer_norm(x, x.shape[1:], norm_weight, norm_bias, eps), weight, bias)
    return F.gelu(out, approximate="tanh") if gelu else out


def layer_norm_linear_triton(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None,
    gelu: bool = False,
    *,
    tile: Tile | None = None,
) -> Tensor:
    """The same in one kernel, in which every program normalizes its rows again: they are few, and in cache.

    The normalized rows are rounded to x's dtype, as layer_norm rounds them. From there to the result all is
    float32: in half precision GELU sees what the plain twin has rounded already.
    """
    check_layer_norm_linear(x, norm_weight, norm_bias, weight, bias)
    check_launchable(x.device)
    (M, K), N = x.shape, len(weight)
    tile = check_tile(tile or default_tile(x, N, can_split=False), can_split=False)
    out = torch.empty(M, N, dtype=x.dtype, device=x.device)
    _layer_norm_linear_kernel[(triton.cdiv(M, tile.block_m), triton.cdiv(N, tile.block_n))](
        x,
        norm_weight,
        norm_bias,
        weight,
        bias,
        out,
        eps,
        x.stride(0),
        M,
        N,
        K,
        HAS_BIAS=bias is not None,
        GELU=gelu,
        UPCAST=must_upcast(x.dtype),
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        BLOCK_STATS=block_stats_of(K, tile),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out


# The batch changes from step to step: specialized for, M would be compiled again for 1 and for 16.
@triton.jit(do_not_specialize=["M"])
def _layer_norm_linear_kernel(
    x_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    eps,
    x_stride_m,
    M,
    N,
    K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GELU: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_STATS: tl.constexpr,
):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)  # programs of the same weights are neighbours
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_m, in_n = m < M, n < N
    x_rows = x_ptr + m[:, None] * x_stride_m
    weight_rows = weight_ptr + n[:, None] * K
    mean = tl.zeros([BLOCK_M], tl.float32)
    rstd = tl.zeros([BLOCK_M], tl.float32)
    acc = _zeros(BLOCK_M, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    norm_weight = tl.load(norm_weight_ptr + k, mask=k < K, other=0.0)
    norm_bias = tl.load(norm_bias_ptr + k, mask=k < K, other=0.0)
    for first in tl.range(0, K, BLOCK_K):
        if first == 0:  # in the loop, not before it: by then the loop's first weights are on their way
            mean, variance = _row_statistics(x_rows, in_m, K, BLOCK_M, BLOCK_STATS)
            rstd = tl.rsqrt(variance + eps)
        k = first + tl.arange(0, BLOCK_K)
        in_k = k < K
        w = tl.load(weight_rows + k[None, :], mask=in_n[:, None] & in_k[None, :], other=0.0)
        x = tl.load(x_rows + k[None, :], mask=in_m[:, None] & in_k[None, :], other=0.0).to(tl.float32)
        normed = (x - mean[:, None]) * rstd[:, None]
        normed = normed * norm_weight.to(tl.float32)[None, :] + norm_bias.to(tl.float32)[None, :]
        acc = _add_product(acc, normed.to(w.dtype), w, UPCAST)
        k += BLOCK_K  # of the norm, the next round's: too few numbers for the loop to be asked for early
        norm_weight = tl.load(norm_weight_ptr + k, mask=k < K, other=0.0)
        norm_bias = tl.load(norm_bias_ptr + k, mask=k < K, other=0.0)
    acc = _rows_first(acc, BLOCK_M)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + n, mask=in_n, other=0.0).to(tl.float32)[None, :]
    if GELU:  # 0.5 * (1 + tanh(u)) is sigmoid(2 * u), and 1.595... is 2 * sqrt(2 / pi)
        twice_u = 1.5957691216057308 * (acc + 0.044715 * acc * acc * acc)
        acc = acc * tl.sigmoid(tl.maximum(twice_u, -80.0))  # less, and the exp in it overflows
    out = out_ptr + m[:, None] * N + n[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


@triton.jit
def _row_statistics(x_rows, in_m, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_STATS: tl.constexpr):
    """Mean and variance of each row, read once: Welford's update (1962) in every column of the block, then
    columns put together as Chan, Golub and LeVeque (1979) do. The mean of the squares less the square of the
    mean, which is simpler, would lose the digits that a large mean takes up."""
    means = tl.zeros([BLOCK_M, BLOCK_STATS], tl.float32)
    squares = tl.zeros([BLOCK_M, BLOCK_STATS], tl.float32)  # of the distances from the mean, summed
    counts = tl.zeros([BLOCK_STATS], tl.float32)
    for first in tl.static_range(0, K, BLOCK_STATS):
        k = first + tl.arange(0, BLOCK_STATS)
        in_k = k < K
        x = tl.load(x_rows + k[None, :], mask=in_m[:, None] & in_k[None, :], other=0.0).to(tl.float32)
        delta = tl.where(in_k[None, :], x - means, 0.0)
        means += delta * (BLOCK_STATS / (first + BLOCK_STATS))
        squares += delta * tl.where(in_k[None, :], x - means, 0.0)
        counts += in_k.to(tl.float32)
    mean = tl.sum(means * counts[None, :], axis=1) / K
    apart = means - mean[:, None]
    return mean, tl.sum(squares + counts[None, :] * apart * apart, axis=1) / K


# tl.dot works fastest with 64 rows or more on its left: there stand the weights if the batch has fewer.


@triton.jit
def _zeros(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    if BLOCK_M < 64:
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    else:
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    return acc


@triton.jit
def _add_product(acc, x, w, UPCAST: tl.constexpr):
    """acc + x @ w.T. UPCAST: in float32, where no product of two halves is rounded either."""
    if UPCAST:
        x, w = x.to(tl.float32), w.to(tl.float32)
    if x.shape[0] < 64:
        acc = tl.dot(w, tl.trans(x), acc, input_precision="ieee")
    else:
        acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    return acc


@triton.jit
def _rows_first(acc, BLOCK_M: tl.constexpr):  # [BLOCK_M, BLOCK_N]
    if BLOCK_M < 64:
        acc = tl.trans(acc)
    return acc


# --- linear, residual -----------------------------------------------------------------------------------


class SplitKWorkspace(NamedTuple):
    """Where programs that share a tile leave their parts. One launch at a time: those of one stream."""

    partials: Tensor  # [at least tiles * split_k * block_m * block_n] float32
    counters: Tensor  # [at least tiles] int32: the parts that have arrived; 0 between launches


def make_split_k_workspace(
    device: torch.device, num_partials: int = 2**21, num_tiles: int = 2**12
) -> SplitKWorkspace:
    """8 MiB unless told otherwise: 256 rows of GPT-2 124M, each sum in 8 parts, need 6."""
    with torch.inference_mode(False):  # or its counters could not be set outside of inference mode
        return SplitKWorkspace(
            torch.empty(num_partials, dtype=torch.float32, device=device),
            torch.zeros(num_tiles, dtype=torch.int32, device=device),
        )


@cache
def split_k_workspace_of(device: torch.device) -> SplitKWorkspace:
    """A device's own, made when it is first asked for, and kept: CUDA graphs remember where it lies.

    Never made while a graph is captured: it would lie in the graph's memory and end with it.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "workspace is first needed while a CUDA graph is captured: call linear_residual_triton or "
            "split_k_workspace_of(device) once before, or pass a workspace"
        )
    return make_split_k_workspace(device)


def linear_residual_plain(
    x: Tensor,  # [M, K]
    weight: Tensor,  # [N, K]
    bias: Tensor | None,  # [N]
    residual: Tensor,  # [M, N]
) -> Tensor:  # [M, N]
    """residual + linear(x): two kernels."""
    check_linear_residual(x, weight, bias, residual)
    return residual + F.linear(x, weight, bias)


def linear_residual_triton(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    *,
    tile: Tile | None = None,
    workspace: SplitKWorkspace | None = None,
) -> Tensor:
    """The same in one kernel; the sum is float32 up to its end, where the plain twin rounds twice.

    With tile.split_k > 1 each program sums a part of the inputs, and the last to arrive adds up the parts,
    always in the same order: the same arguments give the same bits.
    """
    check_linear_residual(x, weight, bias, residual)
    check_launchable(x.device)
    (M, K), N = x.shape, len(weight)
    tile = check_tile(tile or default_tile(x, N, can_split=True), can_split=True)
    grid = (triton.cdiv(M, tile.block_m), triton.cdiv(N, tile.block_n), tile.split_k)
    if tile.split_k > 1:
        workspace = workspace or split_k_workspace_of(x.device)
        check_workspace(workspace, x.device, num_tiles=grid[0] * grid[1], tile=tile)
    out = torch.empty(M, N, dtype=x.dtype, device=x.device)
    partials, counters = workspace if tile.split_k > 1 else (None, None)
    try:
        _linear_residual_kernel[grid](
            x,
            weight,
            bias,
            residual,
            out,
            partials,
            counters,
            x.stride(0),
            residual.stride(0),
            M,
            N,
            K,
            HAS_BIAS=bias is not None,
            UPCAST=must_upcast(x.dtype),
            BLOCK_M=tile.block_m,
            BLOCK_N=tile.block_n,
            BLOCK_K=tile.block_k,
            SPLIT_K=tile.split_k,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
    except BaseException:  # the interpreter, stopped between two parts of a tile
        if counters is not None:
            counters.zero_()
        raise
    return out


@triton.jit(do_not_specialize=["M"])
def _linear_residual_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    partials_ptr,
    counters_ptr,
    x_stride_m,
    residual_stride_m,
    M,
    N,
    K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_m, in_n = m < M, n < N
    in_tile = in_m[:, None] & in_n[None, :]
    x_rows = x_ptr + m[:, None] * x_stride_m
    weight_rows = weight_ptr + n[:, None] * K
    K_A_PART: tl.constexpr = (K + BLOCK_K * SPLIT_K - 1) // (BLOCK_K * SPLIT_K) * BLOCK_K
    part = tl.program_id(2)
    # Asked for first, so that nothing is waited for once the sum is there.
    rest = tl.load(residual_ptr + m[:, None] * residual_stride_m + n[None, :], mask=in_tile, other=0.0)
    rest = rest.to(tl.float32)
    if HAS_BIAS:
        rest += tl.load(bias_ptr + n, mask=in_n, other=0.0).to(tl.float32)[None, :]
    acc = _zeros(BLOCK_M, BLOCK_N)
    for first in tl.range(0, K_A_PART, BLOCK_K):
        k = part * K_A_PART + first + tl.arange(0, BLOCK_K)  # a part may end beyond K, or begin there
        in_k = k < K
        w = tl.load(weight_rows + k[None, :], mask=in_n[:, None] & in_k[None, :], other=0.0)
        x = tl.load(x_rows + k[None, :], mask=in_m[:, None] & in_k[None, :], other=0.0)
        acc = _add_product(acc, x, w, UPCAST)
    acc = _rows_first(acc, BLOCK_M)
    out = out_ptr + m[:, None] * N + n[None, :]
    if SPLIT_K == 1:
        tl.store(out, (acc + rest).to(out_ptr.dtype.element_ty), mask=in_tile)
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
            tl.store(out, (total + rest).to(out_ptr.dtype.element_ty), mask=in_tile)
            tl.store(counters_ptr + tile, 0)  # for the next launch


# --- what all of them rely on ---------------------------------------------------------------------------


def default_tile(x: Tensor, N: int, can_split: bool) -> Tile:
    """The tile of `tile_of`, which thinks of half precision: of float32, a thread holds fewer."""
    tile = tile_of(max(len(x), 1), N, x.shape[1], can_split=can_split)
    return tile if x.element_size() == 2 else tile._replace(block_k=max(16, tile.block_k // 4))


def must_upcast(dtype: torch.dtype) -> bool:
    """Triton's interpreter multiplies the bits of a bfloat16, not its value."""
    return INTERPRETED and dtype == torch.bfloat16


def block_stats_of(K: int, tile: Tile) -> int:
    """Columns that a program keeps statistics of: 32 numbers a thread, and a row within one warp."""
    columns = min(256, max(16, 32 * 32 * tile.num_warps // tile.block_m))
    return min(triton.next_power_of_2(K), max(columns, triton.next_power_of_2(K) // 16))


def check_tile(tile: Tile, can_split: bool) -> Tile:
    """Raises ValueError naming the field that no kernel can be compiled for."""
    tile = Tile(*tile)
    for name, value in tile._asdict().items():
        is_power_of_2 = value > 0 and value & (value - 1) == 0
        if name.startswith("block_") and not (is_power_of_2 and value >= 16):
            raise ValueError(f"tile.{name} is {value}, expected a power of 2, at least 16")
        if name == "num_warps" and not is_power_of_2:
            raise ValueError(f"tile.num_warps is {value}, expected a power of 2")
        if value < 1:
            raise ValueError(f"tile.{name} is {value}, expected at least 1")
    if tile.split_k > 1 and not can_split:
        raise ValueError(f"tile.split_k is {tile.split_k}, but a LayerNorm's row cannot be split")
    return tile


def check_workspace(workspace: SplitKWorkspace, device: torch.device, num_tiles: int, tile: Tile) -> None:
    """Raises ValueError if the parts of a launch have no room in it."""
    partials, counters = workspace
    contiguous = {"device": device, "last_stride_is_1": True}
    check_tensor("workspace.partials", partials, shape=("P",), dtype=torch.float32, **contiguous)
    check_tensor("workspace.counters", counters, shape=("C",), dtype=torch.int32, **contiguous)
    num_partials = num_tiles * tile.split_k * tile.block_m * tile.block_n
    for name, have, need in (
        ("partials", len(partials), num_partials),
        ("counters", len(counters), num_tiles),
    ):
        if have < need:
            raise ValueError(
                f"workspace.{name} has room for {have}, but {tile} needs {need}: pass one made by "
                f"make_split_k_workspace(device, num_partials={num_partials}, num_tiles={num_tiles})"
            )


def check_layer_norm_linear(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor | None
) -> None:
    """Raises ValueError naming the first argument whose shape, stride, dtype or device does not fit."""
    check_linear(x, weight, bias)
    like_x = {"dtype": x.dtype, "device": x.device, "last_stride_is_1": True}
    check_tensor("norm_weight", norm_weight, shape=(x.shape[1],), **like_x)
    check_tensor("norm_bias", norm_bias, shape=(x.shape[1],), **like_x)


def check_linear_residual(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> None:
    """Raises ValueError naming the first argument whose shape, stride, dtype or device does not fit."""
    check_linear(x, weight, bias)
    M, N = len(x), len(weight)
    check_tensor("residual", residual, shape=(M, N), dtype=x.dtype, device=x.device, last_stride_is_1=True)
    check_offsets("residual", residual)


def check_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    check_tensor("x", x, shape=("M", "K"), last_stride_is_1=True)
    if x.dtype not in FLOATS:
        raise ValueError(f"x is {x.dtype}, expected one of {', '.join(map(str, FLOATS))}")
    M, K = x.shape
    like_x = {"dtype": x.dtype, "device": x.device, "last_stride_is_1": True}
    check_tensor("weight", weight, shape=("N", K), **like_x)
    N = len(weight)
    if not weight.is_contiguous():
        raise ValueError(
            f"weight has strides {weight.stride()}, expected {(K, 1)}: contiguous, as nn.Linear's"
        )
    if bias is not None:
        check_tensor("bias", bias, shape=(N,), **like_x)
    check_offsets("x", x)
    check_offsets("weight", weight)
    if M * N > 2**31:
        raise ValueError(f"x has {M} rows and weight {N}: the result would have more than 2^31 numbers")


def check_offsets(name: str, matrix: Tensor) -> None:
    """Raises ValueError if the last number of a matrix is further off than an offset of 32 bits reaches."""
    rows, columns = matrix.shape
    if (rows - 1) * matrix.stride(0) + columns > 2**31:
        raise ValueError(
            f"{name} of shape {list(matrix.shape)} and strides {matrix.stride()} spans more than 2^31 "
            "numbers, which the kernels' offsets of 32 bits do not reach"
        )
