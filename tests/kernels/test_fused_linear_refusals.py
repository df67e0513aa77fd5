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
    norm_arguments,
)
from refusals import assert_each_wrong_tensor_is_refused
from triton_marks import needs_triton

from labkit.kernels import (
    NormLinear,
    RowStatistics,
)
from labkit.kernels.tiles import Tile


@pytest.mark.parametrize("function", EACH)
def test_what_does_not_fit_is_refused_by_name(function: Callable):
    arguments = arguments_of(function, make_case())
    assert_each_wrong_tensor_is_refused(function, arguments)
    layer = arguments["layer"] if is_norm(function) else None
    weight = layer.weight if layer else arguments["weight"]
    for wrong, message in (
        (weight.T.contiguous().T, r"has strides \(1, 33\), expected"),
        (
            torch.cat([weight, weight], dim=1)[:, :40],
            r"has strides \(80, 1\), expected \(40, 1\): contiguous",
        ),
    ):
        changed = {"layer": layer._replace(weight=wrong)} if layer else {"weight": wrong}
        with pytest.raises(ValueError, match=rf"^weight {message}"):
            function(**arguments | changed)
    with pytest.raises(ValueError, match=r"^x is torch.int32, expected one of torch.float16"):
        function(**arguments | {"x": arguments["x"].int()})


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
def test_a_tile_that_no_kernel_has_is_refused(field: str, value: int, message: str):
    assert_is_refused(Tile(16, 16, 16, 1, 4, 2)._replace(**{field: value}), message)


@needs_triton
def test_a_single_row_may_have_fewer_outputs_a_program_but_not_any_number():
    assert_is_refused(Tile(1, 2, 16, 1, 4, 1), "tile.block_n is 2, expected a power of 2, at least 4")
    assert_is_refused(Tile(1, 4, 8, 1, 4, 1), "tile.block_k is 8, expected a power of 2, at least 16")


def assert_is_refused(tile: Tile, message: str) -> None:
    for function in (parameter.values[0] for parameter in TRITON):
        with pytest.raises(ValueError, match=f"^{message}"):
            function(**arguments_of(function, make_case()), tile=tile)
