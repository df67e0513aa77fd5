"""A norm and the linear layer behind it in one kernel, and what `linear_residual` shares with it.

M rows (one new token per request), K inputs, N outputs. With one row or with 256 the weights are read once,
and that takes the time: so there are many programs, each with a tile of the result and its share of the
weights. The normalized rows, and the products before bias, GELU and residual, never reach memory.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.kernels.checks import check_tensor
from labkit.kernels.ring_linear import _norm_ring_kernel, launch_ring
from labkit.kernels.tile_product import held_weights, prefetch_rows, product_options, tile_product
from labkit.kernels.tiles import NOTHING_MEASURED, MeasuredTiles, Tile, check_tile, default_tile
from labkit.kernels.triton_runtime import check_launchable, tl, triton

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


# --- norm, linear, GELU or gate -------------------------------------------------------------------------


class RowStatistics(NamedTuple):
    """What a norm has to know of its input: for each row, cut into parts of `width` columns (the last
    may have fewer), each part's mean and the sum of its squared distances from that mean.

    Parts are combined by the formula of Chan, Golub and LeVeque (1979).
    """

    parts: Tensor  # [M, P, 2] float32
    width: int
    normed: Tensor | None = None  # [M, K]: the input behind that norm, where a kernel has made it already


def row_statistics(x: Tensor, width: int) -> RowStatistics:
    """The statistics of x [M, K] in parts of `width` columns, computed in float32."""
    parts = [part.float() for part in x.split(width, dim=1)]
    means = [part.mean(dim=1) for part in parts]
    squares = [((part - mean[:, None]) ** 2).sum(dim=1) for part, mean in zip(parts, means, strict=True)]
    return RowStatistics(torch.stack([torch.stack(means, 1), torch.stack(squares, 1)], dim=2), width)


def mean_and_rstd(statistics: RowStatistics, K: int, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal standard deviation, each [M] float32, of rows of K columns; eps is added to the
    variance."""
    means, squares = statistics.parts.unbind(2)  # [M, P]
    if means.shape[1] == 1:  # nothing to combine
        return means[:, 0], (squares[:, 0] / K + eps).rsqrt()
    first = torch.arange(means.shape[1], device=means.device) * statistics.width
    counts = (K - first).clamp(max=statistics.width)
    mean = (means * counts).sum(1) / K
    variance = (squares + counts * (means - mean[:, None]) ** 2).sum(1) / K
    return mean, (variance + eps).rsqrt()


def reciprocal_rms(statistics: RowStatistics, K: int, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps), [M] float32, of rows of K columns."""
    means, squares = statistics.parts.unbind(2)  # [M, P]
    first = torch.arange(means.shape[1], device=means.device) * statistics.width
    counts = (K - first).clamp(max=statistics.width)
    return ((squares + counts * means**2).sum(1) / K + eps).rsqrt()


class NormLinear(NamedTuple):
    """A norm and the linear layer behind it in one, as `fold_layer_norm` or `fold_rms_norm` makes it once per
    layer.

    linear(layer_norm(x)) is rstd * (x @ weight.T - mean * column_sums) + bias, with the norm's weight and
    bias inside of `weight` and `bias`: nothing has to be normalized before the product. An RMSNorm takes no
    mean off: it has no column sums.
    """

    weight: Tensor  # [N, K]
    column_sums: Tensor | None  # [N] float32, of the weight's rows as they are stored
    bias: Tensor | None  # [N] float32
    eps: float
    is_gated: bool = False  # rows 2i and 2i + 1 make output i of N / 2, silu(first) * second


def fold_layer_norm(
    norm_weight: Tensor,  # [K]
    norm_bias: Tensor,  # [K]
    eps: float,
    weight: Tensor,  # [N, K]
    bias: Tensor | None,  # [N]
) -> NormLinear:
    """Put a LayerNorm's weight and bias into the linear layer behind it.

    Makes a copy of the linear weight, in its dtype, and two float32 vectors; changes none of its arguments.
    """
    folded = (weight.float() * norm_weight.float()).to(weight.dtype).contiguous()
    folded_bias = weight.float() @ norm_bias.float()
    if bias is not None:
        folded_bias += bias.float()
    return NormLinear(folded, folded.float().sum(dim=1), folded_bias, eps)


def fold_rms_norm(
    norm_weight: Tensor,  # [K]
    eps: float,
    weight: Tensor,  # [N, K]
    bias: Tensor | None,  # [N]
    is_gated: bool = False,
) -> NormLinear:
    """Put an RMSNorm's weight into the linear layer behind it.

    is_gated: the first half of the weight's rows are a gate's, the second half those of what goes through it;
    in the copy each stands beside its own. Changes none of its arguments.
    """
    folded = (weight.float() * norm_weight.float()).to(weight.dtype)
    folded_bias = None if bias is None else bias.to(torch.float32, copy=True)
    if is_gated:
        folded = torch.stack(folded.chunk(2), dim=1).flatten(0, 1)
        folded_bias = None if folded_bias is None else torch.stack(folded_bias.chunk(2), dim=1).flatten()
    return NormLinear(folded.contiguous(), None, folded_bias, eps, is_gated)


def normalized(x: Tensor, layer: NormLinear) -> Tensor:
    """The norm of x [M, K], without a weight and a bias: those are inside of the layer behind it."""
    norm = F.rms_norm if layer.column_sums is None else F.layer_norm
    return norm(x, x.shape[1:], eps=layer.eps)


def norm_linear_plain(
    x: Tensor,  # [M, K]
    statistics: RowStatistics,
    layer: NormLinear,
    gelu: bool = False,
) -> Tensor:  # [M, N], or [M, N / 2] behind a gate
    """linear(norm(x)), with GELU by its tanh formula behind it if asked for, or through the layer's gate.

    Plain PyTorch: the oracle of `norm_linear_triton`. Raises ValueError for arguments that do not fit.
    """
    check_norm_linear(x, statistics, layer, gelu)
    out = F.linear(x.float(), layer.weight.float())
    if layer.column_sums is None:
        out *= reciprocal_rms(statistics, x.shape[1], layer.eps)[:, None]
    else:
        mean, rstd = mean_and_rstd(statistics, x.shape[1], layer.eps)
        out = rstd[:, None] * (out - mean[:, None] * layer.column_sums)
    if layer.bias is not None:
        out = out + layer.bias
    if layer.is_gated:
        gate, up = out.unflatten(1, (-1, 2)).unbind(2)
        out = F.silu(gate) * up
    return (F.gelu(out, approximate="tanh") if gelu else out).to(x.dtype)


def norm_linear_triton(
    x: Tensor,
    statistics: RowStatistics,
    layer: NormLinear,
    gelu: bool = False,
    *,
    tile: Tile | None = None,
    measured: MeasuredTiles = NOTHING_MEASURED,
    prefetch: bool = False,
) -> Tensor:
    """linear(norm(x)) [M, N], with GELU behind it if asked for, or [M, N / 2] through the layer's gate, in
    one kernel; all is float32 from the product to the end.

    Takes what `norm_linear_plain` takes. tile: None picks it by the sizes and the GPU, from `measured` where
    that has one; a held one has weights on the chip before x is there. prefetch: where a program can
    wait for x, its weights come into the L2 cache meanwhile.
    Raises ValueError for arguments that do not fit, and TritonUnavailableError where no kernel runs.
    """
    check_norm_linear(x, statistics, layer, gelu)
    check_launchable(x.device)
    (M, K), N = x.shape, len(layer.weight)
    tile = check_tile(tile or default_tile(x, layer.weight, measured, can_split=False), can_split=False)
    num_parts = statistics.parts.shape[1]
    out = torch.empty(M, N // 2 if layer.is_gated else N, dtype=x.dtype, device=x.device)
    inside = layer.column_sums, layer.bias, out, layer.eps
    sizes = M, N, K, num_parts, statistics.width
    constants = {
        "GATED": layer.is_gated,
        "GELU": gelu,
        "BLOCK_P": triton.next_power_of_2(num_parts),
    }
    if tile.ring:
        ring = _norm_ring_kernel, tile, x, layer.weight
        launch_ring(*ring, statistics.parts, *inside, *sizes, **constants)
        return out
    _norm_linear_kernel[(triton.cdiv(M, tile.block_m), triton.cdiv(N, tile.block_n))](
        x,
        statistics.parts,
        layer.weight,
        *inside,
        x.stride(0),
        *sizes,
        **constants,
        **product_options(tile, x, layer.weight, prefetch),
    )
    return out


# The batch changes from step to step: specialized for, M would be compiled again for 1 and for 16.
@triton.jit(do_not_specialize=["M"])
def _norm_linear_kernel(
    x_ptr, statistics_ptr, weight_ptr, column_sums_ptr, bias_ptr, out_ptr,
    eps,
    x_stride_m,
    M, N,
    K: tl.constexpr, num_parts: tl.constexpr, width: tl.constexpr, GATED: tl.constexpr, GELU: tl.constexpr,
    UPCAST: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_P: tl.constexpr, HELD: tl.constexpr, PREFETCH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)  # programs of the same weights are neighbours
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_m, in_n = m < M, n < N
    x_rows = x_ptr + m[:, None] * x_stride_m
    weight_rows = weight_ptr + n[:, None] * K
    held = held_weights(weight_rows, in_n, 0, K, K, BLOCK_K, HELD)
    if column_sums_ptr is not None:
        column_sums = tl.load(column_sums_ptr + n, mask=in_n, other=0.0)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + n, mask=in_n, other=0.0)
    if EARLY:  # weights do not change; x and its statistics come from the kernel before
        tl.extra.cuda.gdc_launch_dependents()
        if PREFETCH:
            prefetch_rows(weight_ptr, n, 0, K, N, K)
        tl.extra.cuda.gdc_wait()
    # Asked for before the product, so that nothing is waited for after it.
    p = tl.arange(0, BLOCK_P)
    part = (m[:, None] * num_parts + p[None, :]) * 2
    in_part = in_m[:, None] & (p < num_parts)[None, :]
    means = tl.load(statistics_ptr + part, mask=in_part, other=0.0)
    squares = tl.load(statistics_ptr + part + 1, mask=in_part, other=0.0)
    acc = tile_product(
        x_rows, in_m, weight_rows, in_n, held, 0, K, K, BLOCK_M, BLOCK_N, BLOCK_K, HELD, UPCAST
    )
    counts = tl.where(p < num_parts, tl.minimum(K - p * width, width), 0).to(tl.float32)
    apart = means  # from 0, in an RMSNorm
    if column_sums_ptr is not None:
        mean = tl.sum(means * counts[None, :], axis=1) / K
        apart = means - mean[:, None]
    variance = tl.sum(squares + counts[None, :] * apart * apart, axis=1) / K
    rstd = tl.rsqrt(variance + eps)[:, None]
    if column_sums_ptr is not None:
        acc = acc - mean[:, None] * column_sums[None, :]
    acc = rstd * acc
    if bias_ptr is not None:
        acc = acc + bias[None, :]
    N_OUT = N
    if GATED:  # silu(gate) * up
        gate, up = tl.split(tl.reshape(acc, [BLOCK_M, BLOCK_N // 2, 2]))
        acc = gate * tl.sigmoid(gate) * up
        N_OUT = N // 2
        n = tl.program_id(1) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        in_n = n < N_OUT
    if GELU:  # 0.5 * (1 + tanh(u)) is sigmoid(2 * u); 1.595... is 2 * sqrt(2 / pi)
        acc = acc * tl.sigmoid(1.5957691216057308 * (acc + 0.044715 * acc * acc * acc))
    out = out_ptr + m[:, None] * N_OUT + n[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


# --- what all products rely on --------------------------------------------------------------------------


def check_norm_linear(x: Tensor, statistics: RowStatistics, layer: NormLinear, gelu: bool) -> None:
    """Raises ValueError naming the first argument whose shape, stride, dtype or device does not fit, or for a
    gate with GELU behind it."""
    check_linear(x, layer.weight, None)
    (M, K), N = x.shape, len(layer.weight)
    float32 = {"dtype": torch.float32, "device": x.device, "last_stride_is_1": True}
    num_parts = -(-K // statistics.width)
    check_tensor("statistics.parts", statistics.parts, shape=(M, num_parts, 2), is_contiguous=True, **float32)
    for name, vector in (("column_sums", layer.column_sums), ("bias", layer.bias)):
        if vector is not None:
            check_tensor(f"layer.{name}", vector, shape=(N,), **float32)
    if layer.is_gated and (N % 2 or gelu):
        raise ValueError(f"layer is gated: expected 2 rows for each output, and no GELU; it has {N} rows")


def check_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raises ValueError unless x [M, K], weight [N, K] and bias [N] have one floating dtype and one device,
    the weight is contiguous, and the kernels' 32-bit offsets reach every number."""
    check_tensor("x", x, shape=("M", "K"), last_stride_is_1=True)
    if x.dtype not in FLOATS:
        raise ValueError(f"x is {x.dtype}, expected one of {', '.join(map(str, FLOATS))}")
    M, K = x.shape
    like_x = {"dtype": x.dtype, "device": x.device, "last_stride_is_1": True}
    check_tensor("weight", weight, shape=("N", K), is_contiguous=True, **like_x)
    N = len(weight)
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
