"""What both fused linear kernels do alike, plain and in Triton, beside their definition in float64."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from fused_linear_cases import (
    EACH,
    EPS,
    TRITON,
    arguments_of,
    assert_is_layer_norm_then_linear,
    assert_is_linear_and_residual,
    is_norm,
    make_case,
    rms_arguments,
    rms_norm_then_linear,
    tensors_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import assert_each_wrong_tensor_is_refused, unchanged
from triton_marks import KERNEL_DEVICE, devices, dtypes, needs_triton

from labkit.kernels import NormLinear, RowStatistics
from labkit.kernels.tiles import Tile


def assert_is_its_definition(function: Callable, case: dict, **options: object) -> None:
    check = assert_is_layer_norm_then_linear if is_norm(function) else assert_is_linear_and_residual
    check(function, case, **options)


SMALL = {
    "one of everything": (1, 1, 1),
    "no multiple of anything": (17, 33, 75),
    "more rows than the widest block": (65, 17, 70),
    "one output": (5, 1, 64),
    "the tiny model's": (4, 48, 64),
}
small = pytest.mark.parametrize("sizes", SMALL.values(), ids=SMALL)


@pytest.mark.slow
@dtypes
@small
@devices
@pytest.mark.parametrize("function", EACH)
def test_it_is_its_definition(
    function: Callable, device: str, sizes: tuple[int, int, int], dtype: torch.dtype
):
    case = make_case(*sizes, dtype, device)
    assert_is_its_definition(function, case)
    if is_norm(function):
        assert_is_its_definition(function, case, gelu=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, in the interpreter
@pytest.mark.parametrize("value", [torch.nan, -torch.inf], ids=str)
@devices
@pytest.mark.parametrize("function", EACH)
def test_a_broken_row_spoils_no_other(function: Callable, device: str, value: float):
    case = make_case(M=18, device=device)
    expected = tensors_of(function(**arguments_of(function, case)))
    others = [m for m in range(18) if m != 1]
    x = case["x"].clone()
    x[1, 7] = value
    made = tensors_of(function(**arguments_of(function, case | {"x": x})))
    for tensor, wanted in zip(made, expected, strict=True):
        assert torch.equal(tensor[others], wanted[others])
        assert not tensor[1].isfinite().any()


@pytest.mark.parametrize("function", EACH)
def test_no_rows_make_no_result(function: Callable):
    out, *parts = tensors_of(function(**arguments_of(function, make_case(M=0))))
    assert out.shape == (0, 33)
    assert all(len(each) == 0 for each in parts)


@pytest.mark.slow
@pytest.mark.parametrize("function", EACH)
@settings(max_examples=20)
@given(data=st.data())
def test_it_is_its_definition_at_any_size_and_in_any_tile(function: Callable, data: st.DataObject):
    """With weights that are held and others, rows one by one without tensor cores, parts of other means,
    gates, no bias, and rows that are part of wider ones."""
    sizes = data.draw(st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 80)))
    split_k = 1 if is_norm(function) else data.draw(st.integers(1, 5))
    blocks, num_stages = st.sampled_from([16, 32, 64]), data.draw(st.sampled_from([1, 2]))
    tile = Tile(data.draw(blocks), data.draw(blocks), data.draw(blocks), split_k, 4, num_stages)
    if data.draw(st.booleans()):
        tile = tile._replace(block_m=1, block_n=data.draw(st.sampled_from([4, 8])))
    options = {"width": data.draw(st.integers(1, 90))} if is_norm(function) else {}
    if function in (parameter.values[0] for parameter in TRITON):
        options["tile"] = data.draw(st.sampled_from([None, tile]))
    if is_norm(function) and data.draw(st.booleans()):
        case = make_case(sizes[0], 2 * sizes[1], sizes[2])
        out = function(**rms_arguments(case, True, options.pop("width")), **options)
        return torch.testing.assert_close(
            out.double(), rms_norm_then_linear(case, True), rtol=1e-5, atol=1e-5
        )
    case = make_case(*sizes)
    case["x"] += torch.linspace(-3, 3, sizes[2], device=KERNEL_DEVICE)
    if data.draw(st.booleans()):
        case["bias"] = None
    for name in ("x", "residual"):  # part of wider rows
        wide = F.pad(case[name], (0, data.draw(st.sampled_from([0, 5]))), value=torch.nan)
        case[name] = wide[:, : case[name].shape[1]]
    with unchanged(case):
        assert_is_its_definition(function, case, **options)


# --- what the wrappers refuse ----------------------------------------------------------------------


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
            r"has strides \(80, 1\), expected it to be contiguous",
        ),
    ):
        changed = {"layer": layer._replace(weight=wrong)} if layer else {"weight": wrong}
        with pytest.raises(ValueError, match=rf"^weight {message}"):
            function(**arguments | changed)
    with pytest.raises(ValueError, match=r"^x is torch.int32, expected one of torch.float16"):
        function(**arguments | {"x": arguments["x"].int()})


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


TILE = Tile(16, 16, 16, 1, 4, 2)


@needs_triton
@pytest.mark.parametrize(
    "tile, message",
    [
        (TILE._replace(block_m=8), "tile.block_m is 8, expected a power of 2, at least 16"),
        (TILE._replace(block_n=48), "tile.block_n is 48, expected a power of 2"),
        (TILE._replace(split_k=0), "tile.split_k is 0, expected at least 1"),
        (TILE._replace(num_warps=3), "tile.num_warps is 3, expected a power of 2"),
        # A single row may have fewer outputs a program, but not any number.
        (Tile(1, 2, 16, 1, 4, 1), "tile.block_n is 2, expected a power of 2, at least 4"),
        (Tile(1, 4, 8, 1, 4, 1), "tile.block_k is 8, expected a power of 2, at least 16"),
    ],
)
def test_a_tile_that_no_kernel_has_is_refused(tile: Tile, message: str):
    for function in (parameter.values[0] for parameter in TRITON):
        with pytest.raises(ValueError, match=f"^{message}"):
            function(**arguments_of(function, make_case()), tile=tile)
