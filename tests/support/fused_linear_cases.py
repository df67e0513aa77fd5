"""Cases for the fused linear kernels, and what they are compared with: the definition in float64."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from triton_marks import KERNEL_DEVICE, needs_triton, twins

from labkit.kernels import (
    NormLinear,
    RowStatistics,
    fold_layer_norm,
    fold_rms_norm,
    linear_residual_plain,
    linear_residual_triton,
    norm_linear_plain,
    norm_linear_triton,
)
from labkit.kernels.fused_linear import mean_and_rstd, row_statistics
from labkit.kernels.tile_product import must_upcast

# Half precision: a few units in the last place, for the twins round after every step.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2**-8, torch.bfloat16: 2**-5}
UNIT = {torch.float32: 2**-24, torch.float16: 2**-11, torch.bfloat16: 2**-8}  # of rounding to nearest
EPS = 1e-5

NORM_LINEAR = twins(norm_linear_plain, norm_linear_triton)
LINEAR_RESIDUAL = twins(linear_residual_plain, linear_residual_triton)


def randn(*shape: int, like: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=like, device=like.device).to(dtype)


def make_case(
    M: int = 3,
    N: int = 33,
    K: int = 40,
    dtype: torch.dtype = torch.float32,
    device: str = KERNEL_DEVICE,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Input, parameters and residual, by name. Results are of about the size of 1."""
    like = torch.Generator(device).manual_seed(seed)
    return {
        "x": randn(M, K, like=like, dtype=dtype),
        "norm_weight": randn(K, like=like, dtype=dtype),
        "norm_bias": randn(K, like=like, dtype=dtype),
        "weight": (randn(N, K, like=like, dtype=torch.float32) * K**-0.5).to(dtype),
        "bias": randn(N, like=like, dtype=dtype),
        "residual": randn(M, N, like=like, dtype=dtype),
    }


def fold(case: dict) -> NormLinear:
    return fold_layer_norm(case["norm_weight"], case["norm_bias"], EPS, case["weight"], case["bias"])


def norm_arguments(case: dict, width: int | None = None) -> dict:
    """Of a norm_linear, by name; parts of `width`, or one part."""
    x = case["x"]
    return {"x": x, "statistics": row_statistics(x, width or x.shape[1]), "layer": fold(case)}


def residual_arguments(case: dict) -> dict:
    return {name: case[name] for name in ("x", "weight", "bias", "residual")}


def rms_arguments(case: dict, is_gated: bool, width: int) -> dict:
    """Of a norm_linear behind an RMSNorm, in parts of `width`."""
    layer = fold_rms_norm(case["norm_weight"], EPS, case["weight"], case["bias"], is_gated)
    return {"x": case["x"], "statistics": row_statistics(case["x"], width), "layer": layer}


def double(case: dict) -> dict:
    return {name: value.double() if isinstance(value, Tensor) else value for name, value in case.items()}


def layer_norm_then_linear(case: dict) -> Tensor:
    """In float64: [M, N]."""
    a = double(case)
    normed = F.layer_norm(a["x"], a["x"].shape[1:], a["norm_weight"], a["norm_bias"], EPS)
    return F.linear(normed, a["weight"], a["bias"])


def rms_norm_then_linear(case: dict, is_gated: bool) -> Tensor:
    """In float64: [M, N], or [M, N / 2]."""
    a = double(case)
    out = F.linear(F.rms_norm(a["x"], a["x"].shape[1:], a["norm_weight"], EPS), a["weight"], a["bias"])
    gate, up = out.chunk(2, dim=1)
    return F.silu(gate) * up if is_gated else out


def norm_linear_bound(case: dict) -> Tensor:
    """How far off a norm_linear may be, number by number: [M, N] float64.

    The weight with the norm's in it is rounded once to x's dtype, and so is the result; a float32 sum of K
    products, taken before the mean is taken off, is off by less than 4 * sqrt(K) units of the sum of their
    sizes, as good as surely (Higham and Mary, 2019), and what follows the sum (rsqrt, tanh) by less than 16.
    The last factor: GELU's slope is below 1.13, and terms of second order.
    """
    a, unit = double(case), UNIT[case["x"].dtype]
    x, K = a["x"], a["x"].shape[1]
    mean = x.mean(1, keepdim=True)
    rstd = ((x - mean).square().mean(1, keepdim=True) + EPS).rsqrt()
    folded = (a["weight"] * a["norm_weight"]).abs()
    rounded_weight = unit * ((x - mean) * rstd).abs() @ folded.T
    sizes = rstd * ((x.abs() + mean.abs()) @ folded.T) + (a["weight"] * a["norm_bias"]).abs().sum(1)
    if a["bias"] is not None:
        sizes = sizes + a["bias"].abs()
    summed = (4 * K**0.5 + 16) * UNIT[torch.float32] * sizes
    stored = unit_of_storing(case["x"].dtype) * layer_norm_then_linear(case).abs()
    return 1.2 * (rounded_weight + summed + stored)


def unit_of_storing(dtype: torch.dtype) -> float:
    """Triton's interpreter cuts a bfloat16 off, where a GPU rounds it to the nearest."""
    return (2 if must_upcast(dtype) else 1) * UNIT[dtype]


def assert_is_layer_norm_then_linear(
    function: Callable, case: dict, width: int | None = None, gelu: bool = False, **options: object
) -> None:
    x, weight = case["x"], case["weight"]
    out = function(**norm_arguments(case, width), gelu=gelu, **options)
    assert (out.shape, out.dtype, out.device) == ((len(x), len(weight)), x.dtype, x.device)
    expected = layer_norm_then_linear(case)
    expected = F.gelu(expected, approximate="tanh") if gelu else expected
    off = (out.double() - expected).abs()
    assert (off <= norm_linear_bound(case)).all(), (off / norm_linear_bound(case)).max()


def assert_is_linear_and_residual(function: Callable, case: dict, **options: object) -> RowStatistics:
    x, weight = case["x"], case["weight"]
    out, statistics = function(**residual_arguments(case), **options)
    assert (out.shape, out.dtype, out.device) == ((len(x), len(weight)), x.dtype, x.device)
    a, tolerance = double(case), TOLERANCE[x.dtype]
    expected = F.linear(a["x"], a["weight"], a["bias"]) + a["residual"]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    assert_are_statistics_of(out, statistics)
    return statistics


def assert_are_statistics_of(x: Tensor, statistics: RowStatistics) -> None:
    """Part by part, and put together: those of x as it is stored, in float64."""
    K, parts, width = x.shape[1], statistics.parts, statistics.width
    assert (parts.shape, parts.dtype) == ((len(x), -(-K // width), 2), torch.float32)
    assert parts.device == x.device and parts.is_contiguous()
    pieces = x.double().split(width, dim=1)
    means = torch.stack([piece.mean(1) for piece in pieces], 1)
    squares = torch.stack([piece.var(1, correction=0) * piece.shape[1] for piece in pieces], 1)
    expected = torch.stack([means, squares], 2)
    torch.testing.assert_close(parts.double(), expected, rtol=1e-5, atol=1e-5)
    mean, rstd = mean_and_rstd(statistics, K, EPS)
    variance = x.double().var(1, correction=0)
    torch.testing.assert_close(mean.double(), x.double().mean(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rstd.double(), (variance + EPS).rsqrt(), rtol=1e-4, atol=0)


EACH = [
    pytest.param(parameter.values[0], id=f"{name}-{parameter.id}", marks=parameter.marks)
    for name, pair in (("norm_linear", NORM_LINEAR), ("linear_residual", LINEAR_RESIDUAL))
    for parameter in pair
]
TRITON = [
    pytest.param(norm_linear_triton, id="norm_linear", marks=needs_triton),
    pytest.param(linear_residual_triton, id="linear_residual", marks=needs_triton),
]


def is_norm(function: Callable) -> bool:
    return function in (norm_linear_plain, norm_linear_triton)


def arguments_of(function: Callable, case: dict) -> dict:
    return norm_arguments(case) if is_norm(function) else residual_arguments(case)


def tensors_of(result: Tensor | tuple[Tensor, RowStatistics]) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [result[0], result[1].parts]
