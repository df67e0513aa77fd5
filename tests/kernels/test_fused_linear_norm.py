"""A LayerNorm put into the linear layer behind it: statistics, folding, and the product with its GELU."""

from collections.abc import Callable

import pytest
import torch
from fused_linear_cases import (
    EPS,
    NORM_LINEAR,
    TOLERANCE,
    assert_are_statistics_of,
    assert_is_layer_norm_then_linear,
    double,
    fold,
    layer_norm_then_linear,
    make_case,
    norm_arguments,
    rms_arguments,
    rms_norm_then_linear,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import unchanged
from triton_marks import devices, dtypes, needs_triton

from labkit.kernels import norm_linear_triton
from labkit.kernels.fused_linear import row_statistics
from labkit.kernels.tiles import Tile

# --- what a LayerNorm has to know of its input -----------------------------------------------------


@settings(max_examples=100)
@given(st.integers(1, 4), st.integers(1, 90), st.integers(1, 100), st.sampled_from([0.0, 1.0, -300.0, None]))
def test_statistics_of_parts_of_any_width_are_those_of_the_row(
    M: int, K: int, width: int, mean: float | None
):
    """Without a mean they are so small that eps decides."""
    x = make_case(M=M, K=K)["x"]
    x = x / 1000 if mean is None else x + mean
    statistics = row_statistics(x, width)
    assert statistics.width == width
    assert_are_statistics_of(x, statistics)


# --- a LayerNorm put into the layer behind it ------------------------------------------------------


@dtypes
@pytest.mark.parametrize("has_bias", [True, False], ids=["with bias", "without"])
def test_a_folded_layer_has_the_norm_in_its_weights(dtype: torch.dtype, has_bias: bool):
    case = make_case(dtype=dtype) | ({} if has_bias else {"bias": None})
    layer, a = fold(case), double(case)
    assert torch.equal(layer.weight, (case["weight"].float() * case["norm_weight"].float()).to(dtype))
    assert layer.weight.is_contiguous() and layer.eps == EPS
    assert layer.column_sums.dtype == layer.bias.dtype == torch.float32
    # Of the weight as it is stored: else the mean would not go where weights were rounded.
    torch.testing.assert_close(layer.column_sums.double(), layer.weight.double().sum(1), rtol=0, atol=1e-5)
    expected = a["weight"] @ a["norm_bias"] + (a["bias"] if has_bias else 0)
    torch.testing.assert_close(layer.bias.double(), expected, rtol=1e-5, atol=1e-5)


def test_folding_leaves_norm_and_layer_as_they_were():
    case = make_case()
    with unchanged(case):
        layer = fold(case)
        for tensor in (layer.weight, layer.column_sums, layer.bias):
            tensor.fill_(torch.nan)  # a copy


@pytest.mark.slow
@pytest.mark.parametrize("width", [None, 16], ids=["one part", "parts"])
@devices
@pytest.mark.parametrize("function", NORM_LINEAR)
def test_rows_of_a_large_mean_keep_their_variance(function: Callable, device: str, width: int | None):
    """As the mean of the squares less the square of the mean, in float32, it would be off by 1 in 1."""
    case = make_case(K=300, device=device)
    case["x"] += 4096
    assert_is_layer_norm_then_linear(function, case, width)
    out = function(
        **norm_arguments(case, width)
    ).double()  # tighter than the bound, which grows with the mean
    torch.testing.assert_close(out, layer_norm_then_linear(case), rtol=3e-3, atol=1e-2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, in the interpreter
@devices
@pytest.mark.parametrize("function", NORM_LINEAR)
def test_gelu_of_large_numbers_does_not_overflow(function: Callable, device: str):
    case = make_case(device=device)
    case["bias"][:4] = torch.tensor([-1e4, -100.0, 100.0, 1e4])
    assert_is_layer_norm_then_linear(function, case, gelu=True)


# --- RMSNorm, and a gate ---------------------------------------------------------------------------


@pytest.mark.slow
@dtypes
@devices
@pytest.mark.parametrize("is_gated", [False, True], ids=["linear", "gated"])
@pytest.mark.parametrize("sizes", [(1, 2, 1), (17, 34, 75), (65, 50, 70)], ids=str)
@pytest.mark.parametrize("function", NORM_LINEAR)
def test_it_is_rms_norm_then_linear_and_perhaps_a_gate(
    function: Callable, sizes: tuple[int, int, int], is_gated: bool, device: str, dtype: torch.dtype
):
    case = make_case(*sizes, dtype, device)
    case["x"] += torch.linspace(-1, 1, sizes[2], device=device).to(dtype)  # parts of other means
    for bias in (case["bias"], None):
        case["bias"] = bias
        out = function(**rms_arguments(case, is_gated, width=32))
        expected, tolerance = rms_norm_then_linear(case, is_gated), TOLERANCE[dtype]
        assert (out.shape, out.dtype) == (expected.shape, dtype)
        torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=2 * tolerance)


@pytest.mark.parametrize("function", NORM_LINEAR)
def test_a_gate_has_two_rows_for_each_output_and_no_gelu(function: Callable):
    arguments = rms_arguments(make_case(N=4), True, width=40)
    odd = arguments["layer"]._replace(weight=arguments["layer"].weight[1:], bias=None)
    for wrong in ({"gelu": True}, {"layer": odd}):
        with pytest.raises(ValueError, match=r"^layer is gated: expected 2 rows for each output"):
            function(**arguments | wrong)


@needs_triton
def test_a_product_behind_a_layer_norm_is_not_split():
    arguments = norm_arguments(make_case())
    with pytest.raises(ValueError, match=r"^tile.split_k is 2, but a product behind a norm is not split"):
        norm_linear_triton(**arguments, tile=Tile(16, 16, 16, 2, 4, 2))
