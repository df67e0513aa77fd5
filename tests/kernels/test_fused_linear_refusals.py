"""What the wrappers of the fused linear kernels refuse, by the argument's name."""

from collections.abc import Callable

import pytest
import torch
from fused_linear_cases import (
    EACH,
    EPS,
    NORM_LINEAR,
    TRITON,
    arguments_of,
    is_norm,
    make_case,
    needs_triton,
    norm_arguments,
)
from torch import Tensor

from labkit.kernels import (
    NormLinear,
    RowStatistics,
)
from labkit.kernels.tiles import Tile


def strided(tensor: Tensor) -> Tensor:
    """The same values, the last dimension two apart."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def on_meta(tensor: Tensor) -> Tensor:
    return tensor.to("meta")


INPUT = {
    "rows of another rank": ("x", lambda x: x[0], r"x has shape \[40\], expected \[M, K\]"),
    "rows with gaps": ("x", strided, r"x has strides \(80, 2\), expected the last dimension"),
    "rows of float64": ("x", Tensor.double, r"x is torch.float64, expected one of torch.float16, "),
    "rows of integers": ("x", Tensor.int, r"x is torch.int32, expected one of torch.float16"),
}
WEIGHT = {
    "weights of other inputs": (lambda w: w[:, 1:], r"weight has shape \[33, 39\], expected \[N, 40"),
    "weights of another dtype": (Tensor.half, r"weight is torch.float16, expected torch.float32"),
    "weights on another device": (on_meta, r"weight is on meta, expected"),
    "weights by column": (
        lambda w: w.T.contiguous().T,
        r"weight has strides \(1, 33\), expected",
    ),
    "weights of wider rows": (
        lambda w: torch.cat([w, w], dim=1)[:, :40],
        r"weight has strides \(80, 1\), expected \(40, 1\): contiguous",
    ),
}
BIAS = {
    "biases of other outputs": ("bias", lambda b: b[1:], r"bias has shape \[32\], expected \[33\]"),
    "biases of another dtype": ("bias", Tensor.half, r"bias is torch.float16"),
    "biases on another device": ("bias", on_meta, r"bias is on meta"),
    "biases with gaps": ("bias", strided, r"bias has strides \(2,\)"),
}
VECTORS = {
    f"{name} {what}": (f"layer.{name}", change, f"layer.{name} {message}")
    for name in ("column_sums", "bias")
    for what, change, message in (
        ("of other outputs", lambda t: t[1:], r"has shape \[32\], expected \[33\]"),
        ("of half precision", Tensor.half, r"is torch.float16, expected torch.float32"),
        ("on another device", on_meta, r"is on meta"),
        ("with gaps", strided, r"has strides \(2,\)"),
    )
}
STATISTICS = {
    "statistics of other rows": (lambda p: p[1:], r"has shape \[2, 1, 2\], expected \[3, 1, 2\]"),
    "statistics of more parts": (
        lambda p: p.repeat(1, 2, 1),
        r"has shape \[3, 2, 2\], expected \[3, 1, 2\]",
    ),
    "statistics without squares": (lambda p: p[..., :1], r"has shape \[3, 1, 1\], expected \[3, 1, 2\]"),
    "statistics of half precision": (Tensor.half, r"is torch.float16, expected torch.float32"),
    "statistics on another device": (on_meta, r"is on meta"),
    "statistics with gaps": (strided, r"has strides \(4, 4, 2\), expected the last dimension"),
    "statistics of rows with gaps": (
        lambda p: torch.cat([p, p], 1)[:, :1],
        r"has strides \(4, 2, 1\), expected contiguous",
    ),
}
RESIDUAL = {
    "a residual of other rows": (
        "residual",
        lambda r: r[1:],
        r"residual has shape \[2, 33\], expected \[3, 33",
    ),
    "a residual of other outputs": ("residual", lambda r: r[:, 1:], r"residual has shape \[3, 32\]"),
    "a residual of another dtype": ("residual", Tensor.half, r"residual is torch.float16"),
    "a residual on another device": ("residual", on_meta, r"residual is on meta"),
    "a residual with gaps": ("residual", strided, r"residual has strides \(66, 2\)"),
}
OF_NORM_LINEAR = (
    INPUT
    | {what: ("layer.weight", *case) for what, case in WEIGHT.items()}
    | VECTORS
    | {
        what: ("statistics.parts", change, f"statistics.parts {message}")
        for what, (change, message) in STATISTICS.items()
    }
)
OF_LINEAR_RESIDUAL = INPUT | {what: ("weight", *case) for what, case in WEIGHT.items()} | BIAS | RESIDUAL
REFUSED = [
    pytest.param(function.values[0], *case, id=f"{function.id}-{what}", marks=function.marks)
    for function in EACH
    for what, case in (OF_NORM_LINEAR if is_norm(function.values[0]) else OF_LINEAR_RESIDUAL).items()
]


@pytest.mark.parametrize("function, name, change, message", REFUSED)
def test_what_does_not_fit_is_refused_by_name(function: Callable, name: str, change: Callable, message: str):
    arguments = arguments_of(function, make_case())
    name, _, field = name.partition(".")
    value = arguments[name]
    changed = value._replace(**{field: change(getattr(value, field))}) if field else change(value)
    with pytest.raises(ValueError, match=f"^{message}"):
        function(**arguments | {name: changed})


@pytest.mark.parametrize("function", NORM_LINEAR)
def test_parts_of_another_width_are_refused(function: Callable):
    arguments = norm_arguments(make_case(), width=16)  # three parts
    statistics = arguments["statistics"]._replace(width=40)
    with pytest.raises(ValueError, match=r"^statistics.parts has shape \[3, 3, 2\], expected \[3, 1, 2\]"):
        function(**arguments | {"statistics": statistics})


@pytest.mark.parametrize("function", EACH)
def test_weights_past_the_reach_of_32_bits_are_refused(function: Callable):
    """Nothing is reserved: tensors of the meta device have no numbers."""
    M, N, K = 2, 2**17 + 1, 2**14
    x, vector = torch.empty(M, K, device="meta"), torch.empty(N, device="meta")
    weight = torch.empty(1, device="meta").expand(1, 1).repeat(N, K)
    if is_norm(function):
        statistics = RowStatistics(torch.empty(M, 1, 2, device="meta"), K)
        arguments = {"x": x, "statistics": statistics, "layer": NormLinear(weight, vector, vector, EPS)}
    else:
        residual = torch.empty(M, N, device="meta")
        arguments = {"x": x, "weight": weight, "bias": vector, "residual": residual}
    with pytest.raises(ValueError, match=r"^weight of shape \[131073, 16384\] .* more than 2\^31 numbers"):
        function(**arguments)


@needs_triton
@pytest.mark.parametrize("function", TRITON)
@pytest.mark.parametrize(
    "field, value, message",
    [
        ("block_m", 8, "tile.block_m is 8, expected a power of 2, at least 16"),
        ("block_n", 48, "tile.block_n is 48, expected a power of 2"),
        ("block_k", 0, "tile.block_k is 0, expected a power of 2"),
        ("split_k", 0, "tile.split_k is 0, expected at least 1"),
        ("num_warps", 3, "tile.num_warps is 3, expected a power of 2"),
        ("num_stages", 0, "tile.num_stages is 0, expected at least 1"),
    ],
)
def test_a_tile_that_no_kernel_has_is_refused(function: Callable, field: str, value: int, message: str):
    tile = Tile(16, 16, 16, 1, 4, 2)._replace(**{field: value})
    with pytest.raises(ValueError, match=f"^{message}"):
        function(**arguments_of(function, make_case()), tile=tile)
