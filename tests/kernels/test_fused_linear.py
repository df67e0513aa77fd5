"""The linear layers of a block, plain and fused in Triton, against their definition in float64."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from labkit.kernels import (
    NormLinear,
    RowStatistics,
    fold_layer_norm,
    fused_linear,
    linear_residual_plain,
    linear_residual_triton,
    norm_linear_plain,
    norm_linear_triton,
    triton_status,
)
from labkit.kernels.fused_linear import (
    TILES,
    SplitKWorkspace,
    Tile,
    make_split_k_workspace,
    mean_and_rstd,
    row_statistics,
    staged_bytes,
    tile_of,
    tile_with_room,
)

# Kernels run in the interpreter on CPU tensors, or compiled on the GPU's.
NATIVE = triton_status().mode == "native"
KERNEL_DEVICE = "cuda" if NATIVE else "cpu"
# Half precision: a few units in the last place, for the twins round after every step.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2**-8, torch.bfloat16: 2**-5}
UNIT = {torch.float32: 2**-24, torch.float16: 2**-11, torch.bfloat16: 2**-8}  # of rounding to nearest
EPS = 1e-5

needs_triton = pytest.mark.skipif(triton_status().mode == "off", reason=triton_status().reason)
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
# The same cases once more on a GPU, for `pytest -m cuda`.
devices = pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.skipif(NATIVE, reason="kernels are compiled for the GPU here")),
        pytest.param("cuda", marks=pytest.mark.cuda),
    ],
)
NORM_LINEAR = [
    pytest.param(norm_linear_plain, id="plain"),
    pytest.param(norm_linear_triton, id="triton", marks=needs_triton),
]
LINEAR_RESIDUAL = [
    pytest.param(linear_residual_plain, id="plain"),
    pytest.param(linear_residual_triton, id="triton", marks=needs_triton),
]


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


def double(case: dict) -> dict:
    return {name: value.double() if isinstance(value, Tensor) else value for name, value in case.items()}


def layer_norm_then_linear(case: dict) -> Tensor:
    """In float64: [M, N]."""
    a = double(case)
    normed = F.layer_norm(a["x"], a["x"].shape[1:], a["norm_weight"], a["norm_bias"], EPS)
    return F.linear(normed, a["weight"], a["bias"])


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
    return (2 if fused_linear.must_upcast(dtype) else 1) * UNIT[dtype]


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
    K, (parts, width) = x.shape[1], statistics
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


SMALL = {
    "one row": (1, 20, 24),
    "one of everything": (1, 1, 1),
    "three rows": (3, 16, 32),
    "no multiple of anything": (17, 33, 75),
    "two blocks of rows and one more": (33, 19, 40),
    "more rows than the widest block": (65, 17, 70),
    "one output": (5, 1, 64),
    "the tiny model's": (4, 48, 64),
}
small = pytest.mark.parametrize("sizes", SMALL.values(), ids=SMALL)
# Weights stand on the left of the product, or rows; K in one piece, or in many.
TILED = {
    "default": None,
    "weights left": Tile(16, 16, 32, 1, 4, 3),
    "weights left, in one piece": Tile(32, 64, 128, 1, 4, 2),
    "rows left": Tile(64, 16, 16, 1, 4, 3),
}
tiled = pytest.mark.parametrize("tile", TILED.values(), ids=TILED)
WIDTHS = {
    "one part": 70,
    "wider than a row": 128,
    "equal parts": 35,
    "a last part that is shorter": 16,
    "a last part of one": 23,
    "a part a number": 1,
}
widths = pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)


# --- what a LayerNorm has to know of its input -----------------------------------------------------


@widths
@dtypes
def test_statistics_of_parts_are_those_of_the_row(dtype: torch.dtype, width: int):
    x = make_case(M=5, K=70, dtype=dtype)["x"]
    statistics = row_statistics(x, width)
    assert statistics.width == width
    assert_are_statistics_of(x, statistics)


@settings(max_examples=100)
@given(st.integers(1, 4), st.integers(1, 90), st.integers(1, 100), st.sampled_from([0.0, 1.0, -300.0]))
def test_parts_of_any_width_are_put_together(M: int, K: int, width: int, mean: float):
    x = make_case(M=M, K=K)["x"] + mean
    means, rstd = mean_and_rstd(row_statistics(x, width), K, EPS)
    variance = x.double().var(1, correction=0)
    torch.testing.assert_close(means.double(), x.double().mean(1), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(rstd.double(), (variance + EPS).rsqrt(), rtol=1e-3, atol=0)


@widths
@pytest.mark.parametrize("value", [0.0, 2.5, -4096.0])
def test_a_row_of_equal_numbers_has_no_variance(value: float, width: int):
    x = torch.full((2, 70), value)
    statistics = row_statistics(x, width)
    assert (statistics.parts[:, :, 0] == value).all() and (statistics.parts[:, :, 1] == 0).all()
    mean, rstd = mean_and_rstd(statistics, 70, EPS)
    assert (mean == value).all()
    torch.testing.assert_close(rstd, torch.full((2,), EPS**-0.5))


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
    case, before = make_case(), make_case()
    layer = fold(case)
    for tensor in (layer.weight, layer.column_sums, layer.bias):
        tensor.fill_(torch.nan)  # a copy
    for name, value in case.items():
        assert torch.equal(value, before[name]), name


@pytest.mark.slow
@dtypes
@small
@devices
@pytest.mark.parametrize("gelu", [False, True], ids=["linear", "gelu"])
@pytest.mark.parametrize("function", NORM_LINEAR)
def test_it_is_layer_norm_then_linear(
    function: Callable, gelu: bool, device: str, sizes: tuple[int, int, int], dtype: torch.dtype
):
    assert_is_layer_norm_then_linear(function, make_case(*sizes, dtype, device), gelu=gelu)


@pytest.mark.slow
@needs_triton
@tiled
@devices
@pytest.mark.parametrize("sizes", [(3, 33, 75), (65, 17, 130)], ids=str)
def test_norm_linear_is_the_same_in_any_tile(device: str, sizes: tuple, tile: Tile | None):
    case = make_case(*sizes, device=device)
    assert_is_layer_norm_then_linear(norm_linear_triton, case, width=32, gelu=True, tile=tile)


@widths
@devices
@pytest.mark.parametrize("function", NORM_LINEAR)
def test_norm_linear_takes_statistics_in_parts_of_any_width(function: Callable, device: str, width: int):
    case = make_case(17, 20, 70, device=device)
    case["x"] += torch.linspace(-3, 3, 70, device=device)  # parts of other means
    assert_is_layer_norm_then_linear(function, case, width)


@pytest.mark.slow
@pytest.mark.parametrize("width", [None, 16], ids=["one part", "parts"])
@pytest.mark.parametrize("K", [40, 300], ids=["one block", "more than one"])
@devices
@pytest.mark.parametrize("function", NORM_LINEAR)
def test_rows_of_a_large_mean_keep_their_variance(function: Callable, device: str, K: int, width: int | None):
    """As the mean of the squares less the square of the mean, in float32, it would be off by 1 in 1."""
    case = make_case(K=K, device=device)
    case["x"] += 4096
    assert_is_layer_norm_then_linear(function, case, width)
    out = function(
        **norm_arguments(case, width)
    ).double()  # tighter than the bound, which grows with the mean
    torch.testing.assert_close(out, layer_norm_then_linear(case), rtol=3e-3, atol=1e-2)


@pytest.mark.slow
@dtypes
@pytest.mark.parametrize("width", [None, 16], ids=["one part", "parts"])
@pytest.mark.parametrize("value", [2.5, -96.0])
@pytest.mark.parametrize("function", NORM_LINEAR)
def test_rows_of_equal_numbers_are_the_bias_of_the_norm(
    function: Callable, value: float, width: int | None, dtype: torch.dtype
):
    case = make_case(dtype=dtype)
    case["x"][1].fill_(value)
    assert_is_layer_norm_then_linear(function, case, width)
    out = function(**norm_arguments(case, width))[1]
    a = double(case)
    expected = a["weight"] @ a["norm_bias"] + a["bias"]
    # The mean is taken off a sum in float32, and what that leaves is divided by sqrt(eps).
    rtol = unit_of_storing(dtype)
    torch.testing.assert_close(out.double(), expected, rtol=rtol, atol=1e-5 + 1e-3 * abs(value))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, in the interpreter
@devices
@pytest.mark.parametrize("function", NORM_LINEAR)
def test_gelu_of_large_numbers_does_not_overflow(function: Callable, device: str):
    case = make_case(device=device)
    case["bias"][:4] = torch.tensor([-1e4, -100.0, 100.0, 1e4])
    assert_is_layer_norm_then_linear(function, case, gelu=True)


@needs_triton
def test_a_product_behind_a_layer_norm_is_not_split():
    arguments = norm_arguments(make_case())
    with pytest.raises(ValueError, match=r"^tile.split_k is 2, but a product behind a LayerNorm is not spli"):
        norm_linear_triton(**arguments, tile=Tile(16, 16, 16, 2, 4, 2))


# --- linear, residual ------------------------------------------------------------------------------


@pytest.mark.slow
@dtypes
@small
@devices
@pytest.mark.parametrize("function", LINEAR_RESIDUAL)
def test_it_is_linear_and_residual(
    function: Callable, device: str, sizes: tuple[int, int, int], dtype: torch.dtype
):
    assert_is_linear_and_residual(function, make_case(*sizes, dtype, device))


@pytest.mark.slow
@needs_triton
@devices
@pytest.mark.parametrize("split_k", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "block_m, block_n, dtype",
    [(16, 32, torch.float16), (64, 32, torch.float32), (32, 16, torch.bfloat16)],
    ids=str,
)
def test_a_tile_may_be_shared(block_m: int, block_n: int, split_k: int, device: str, dtype: torch.dtype):
    """K is five blocks: the parts are not of one size, and of four, one is empty."""
    workspace = make_split_k_workspace(torch.device(device), num_partials=2**14, num_tiles=16)
    workspace.partials.fill_(torch.nan)
    case = make_case(17, 40, 75, dtype, device)
    tile = Tile(block_m, block_n, 16, split_k, 4, 2)
    for _ in range(2):
        statistics = assert_is_linear_and_residual(
            linear_residual_triton, case, tile=tile, workspace=workspace
        )
        assert statistics.width == block_n
        assert not workspace.counters.any()  # it can be launched again


@pytest.mark.slow
@needs_triton
@dtypes
@devices
@pytest.mark.parametrize("block_n", [16, 64])
@pytest.mark.parametrize("N", [1, 33, 64])
def test_statistics_are_those_of_what_is_stored_whatever_the_tile(
    N: int, block_n: int, device: str, dtype: torch.dtype
):
    """Rows of a mean far from 0: of what is summed, and not stored, they would be others."""
    case = make_case(5, N, 40, dtype, device)
    case["residual"] += 100
    tile = Tile(16, block_n, 16, 2, 4, 2)
    out, statistics = linear_residual_triton(**residual_arguments(case), tile=tile)
    expected = row_statistics(out, block_n)
    assert statistics.width == expected.width == block_n
    torch.testing.assert_close(statistics.parts, expected.parts, rtol=1e-5, atol=1e-5)
    # And a LayerNorm that is told them is that of the row.
    behind = make_case(5, 20, N, dtype, device) | {"x": out}
    arguments = norm_arguments(behind) | {"statistics": statistics}
    for function in (norm_linear_plain, norm_linear_triton):
        off = (function(**arguments).double() - layer_norm_then_linear(behind)).abs()
        assert (off <= norm_linear_bound(behind)).all()


@needs_triton
@devices
def test_parts_are_added_in_their_order(device: str):
    """1e8 and -1e8 first, then 1: in any other order the 1 is lost."""
    arguments = residual_arguments(make_case(1, 16, 48, device=device))
    x, weight, bias, residual = arguments.values()
    weight.zero_(), bias.zero_(), residual.zero_(), x.fill_(1)
    weight[:, 0], weight[:, 16], weight[:, 32] = 1e8, -1e8, 1
    out, statistics = linear_residual_triton(**arguments, tile=Tile(16, 16, 16, 3, 4, 2))
    assert (out == 1).all()
    assert statistics.parts.tolist() == [[[1, 0]]]


@needs_triton
def test_without_a_workspace_each_call_makes_its_own_and_no_larger_than_needed(
    monkeypatch: pytest.MonkeyPatch,
):
    made = []

    def spy(device: torch.device, num_partials: int, num_tiles: int) -> SplitKWorkspace:
        made.append(make_split_k_workspace(device, num_partials, num_tiles))
        return made[-1]

    monkeypatch.setattr(fused_linear, "make_split_k_workspace", spy)
    tile = tile_of(5, 20, 200)
    assert tile.split_k > 1
    for _ in range(2):
        assert_is_linear_and_residual(linear_residual_triton, make_case(5, 20, 200))
    first, second = made
    assert len(first.counters) == 1 and not first.counters.any()  # one tile
    assert len(first.partials) == tile.split_k * tile.block_m * tile.block_n
    assert first.counters.data_ptr() != second.counters.data_ptr()


@needs_triton
def test_a_call_with_a_workspace_makes_none(monkeypatch: pytest.MonkeyPatch):
    workspace = make_split_k_workspace(torch.device(KERNEL_DEVICE))
    monkeypatch.delattr(fused_linear, "make_split_k_workspace")
    assert_is_linear_and_residual(linear_residual_triton, make_case(5, 20, 200), workspace=workspace)


@needs_triton
def test_counters_are_cleared_if_a_launch_is_interrupted(monkeypatch: pytest.MonkeyPatch):
    workspace = make_split_k_workspace(torch.device(KERNEL_DEVICE), num_partials=2**12, num_tiles=4)

    class Interrupted:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable:
            def launch(*args: object, **kwargs: object) -> None:
                workspace.counters[0] += 1
                raise KeyboardInterrupt

            return launch

    case = make_case()
    options = {"tile": Tile(16, 16, 16, 2, 4, 2), "workspace": workspace}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(fused_linear, "_linear_residual_kernel", Interrupted())
        linear_residual_triton(**residual_arguments(case), **options)
    assert not workspace.counters.any()
    assert_is_linear_and_residual(linear_residual_triton, case, **options)


@needs_triton
@pytest.mark.parametrize(
    "sizes, message",
    [
        (
            {"num_partials": 1000},
            r"workspace.partials has room for 1000, but .* needs 3072: .* num_tiles=6\)",
        ),
        ({"num_tiles": 5}, r"workspace.counters has room for 5, but .* needs 6"),
    ],
    ids=["partials", "counters"],
)
def test_a_workspace_too_small_is_refused(sizes: dict, message: str):
    arguments = residual_arguments(make_case(M=17))
    workspace = make_split_k_workspace(torch.device(KERNEL_DEVICE), **sizes)
    with pytest.raises(ValueError, match=f"^{message}"):
        linear_residual_triton(**arguments, tile=Tile(16, 16, 16, 2, 4, 2), workspace=workspace)


# --- both ------------------------------------------------------------------------------------------

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


def assert_is_its_definition(function: Callable, case: dict, **options: object) -> None:
    check = assert_is_layer_norm_then_linear if is_norm(function) else assert_is_linear_and_residual
    check(function, case, **options)


@pytest.mark.parametrize("function", EACH)
def test_a_layer_may_be_without_bias(function: Callable):
    assert_is_its_definition(function, make_case() | {"bias": None})


@pytest.mark.parametrize("function", EACH)
def test_rows_may_be_part_of_wider_ones(function: Callable):
    case = make_case(M=18)
    for name in ("x", "residual"):
        wider = torch.full((18, 2 * case[name].shape[1]), torch.nan, device=KERNEL_DEVICE)
        wider[:, : case[name].shape[1]] = case[name]
        case[name] = wider[:, : case[name].shape[1]]
    assert_is_its_definition(function, case)


@pytest.mark.parametrize("function", EACH)
def test_arguments_stay_as_they_are(function: Callable):
    arguments, before = (flat(arguments_of(function, make_case())) for _ in range(2))
    function(**arguments_of(function, make_case()))
    for name, value in arguments.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(before[name])), name


def flat(arguments: dict) -> dict:
    """Tuples taken apart."""
    parts = [
        {f"{name}.{field}": part for field, part in value._asdict().items()}
        if hasattr(value, "_asdict")
        else {name: value}
        for name, value in arguments.items()
    ]
    return {name: value for part in parts for name, value in part.items()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, in the interpreter
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("where", ["one number", "the row"])
@devices
@pytest.mark.parametrize("function", EACH)
def test_a_broken_row_spoils_no_other(function: Callable, device: str, where: str, value: float):
    case = make_case(M=18, device=device)
    expected = tensors_of(function(**arguments_of(function, case)))
    others = [m for m in range(18) if m != 1]
    x = case["x"].clone()
    x[1, 7 if where == "one number" else slice(None)] = value
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
@needs_triton
@pytest.mark.parametrize("function", TRITON)
@settings(max_examples=20)
@given(data=st.data())
def test_it_is_its_definition_at_any_size_and_in_any_tile(function: Callable, data: st.DataObject):
    sizes = data.draw(st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 80)))
    split_k = 1 if is_norm(function) else data.draw(st.integers(1, 5))
    blocks = st.sampled_from([16, 32, 64])
    tile = Tile(data.draw(blocks), data.draw(blocks), data.draw(blocks), split_k, 4, 2)
    options = {"width": data.draw(st.integers(1, 90))} if is_norm(function) else {}
    tile = data.draw(st.sampled_from([None, tile]))
    assert_is_its_definition(function, make_case(*sizes), tile=tile, **options)


# --- tiles -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("can_split", [True, False])
@settings(max_examples=200)
@given(st.integers(1, 300), st.integers(1, 60_000), st.integers(1, 20_000))
def test_any_size_has_a_tile_for_which_there_is_room(can_split: bool, M: int, N: int, K: int):
    assert_has_a_tile(M, N, K, can_split)


@pytest.mark.parametrize("M", [1, 8, 16, 17, 32, 64, 65, 128, 256, 257])
@pytest.mark.parametrize("N, K", TILES, ids=str)
def test_gpt2s_sizes_have_tiles_for_which_there_is_room(N: int, K: int, M: int):
    assert_has_a_tile(M, N, K, can_split=True)
    assert_has_a_tile(M, N, K, can_split=False)


def assert_has_a_tile(M: int, N: int, K: int, can_split: bool) -> None:
    tile = fused_linear.check_tile(tile_of(M, N, K, can_split=can_split), can_split)
    tiles = -(-M // tile.block_m) * -(-N // tile.block_n)
    if tile.split_k > 1:
        workspace = make_split_k_workspace(torch.device("meta"))
        fused_linear.check_workspace(workspace, torch.device("meta"), tiles, tile)


ROOM = {"H100": 227 * 2**10, "A100": 163 * 2**10, "RTX 3090": 99 * 2**10, "T4": 64 * 2**10}  # bytes


@pytest.mark.parametrize("room", ROOM.values(), ids=ROOM)
@pytest.mark.parametrize("N, K", TILES, ids=str)
def test_tiles_are_cut_to_the_shared_memory_that_there_is(N: int, K: int, room: int):
    for _, tile in TILES[N, K]:
        cut = tile_with_room(tile, 2, room)
        assert staged_bytes(cut, 2) <= room
        if staged_bytes(tile, 2) <= room:
            assert cut == tile
        else:  # and no further than they must be
            assert cut == tile._replace(num_stages=cut.num_stages)
            assert staged_bytes(cut._replace(num_stages=cut.num_stages + 1), 2) > room


def test_with_99_kib_only_the_tile_of_few_rows_has_a_stage_less():
    cut = {t for rows in TILES.values() for _, t in rows if tile_with_room(t, 2, ROOM["RTX 3090"]) != t}
    assert cut == {Tile(16, 64, 128, 1, 4, 6)}
    assert staged_bytes(*cut, 2) == 102_400
    assert tile_with_room(*cut, 2, ROOM["RTX 3090"]) == Tile(16, 64, 128, 1, 4, 5)


def test_where_fewer_stages_are_not_enough_there_are_fewer_inputs_a_stage():
    tile = Tile(64, 128, 128, 1, 8, 4)  # 48 KiB a stage
    assert tile_with_room(tile, 2, 144 * 2**10) == tile
    assert tile_with_room(tile, 2, 48 * 2**10) == tile._replace(num_stages=2)
    assert tile_with_room(tile, 2, 47 * 2**10) == tile._replace(num_stages=2, block_k=64)
    assert tile_with_room(tile, 2, 0) == tile._replace(num_stages=2, block_k=16)  # the least that there is


@needs_triton
@pytest.mark.parametrize("dtype, block_k, stages", [(torch.float16, 128, 3), (torch.float32, 32, 5)], ids=str)
def test_the_tile_of_a_launch_is_cut_to_its_device_and_one_that_is_passed_is_not(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, block_k: int, stages: int
):
    """A number of float32 takes twice the room, but a stage has a quarter of them."""
    monkeypatch.setattr(fused_linear, "shared_memory_of", lambda device: 40 * 2**10)
    x = torch.empty(3, 768, dtype=dtype, device=KERNEL_DEVICE)
    expected = Tile(16, 64, block_k, 1, 4, stages)  # of 6
    assert fused_linear.default_tile(x, 2304, can_split=False) == expected
    launched = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable:
            return lambda *args, **options: launched.append((options["BLOCK_K"], options["num_stages"]))

    monkeypatch.setattr(fused_linear, "_norm_linear_kernel", Kernel())
    arguments = norm_arguments(make_case(3, 2304, 768, dtype))
    norm_linear_triton(**arguments)
    norm_linear_triton(**arguments, tile=Tile(16, 64, 256, 1, 4, 6))
    assert launched == [(block_k, stages), (256, 6)]


@pytest.mark.parametrize("N, K", TILES, ids=str)
def test_the_tiles_measured_are_the_ones_taken(N: int, K: int):
    rows = TILES[N, K]
    assert [M for M, _ in rows] == sorted({M for M, _ in rows})
    least = 1
    for most, tile in rows:
        for M in (least, most):
            assert tile_of(M, N, K) == tile
            assert tile_of(M, N, K, can_split=False) == tile or tile.split_k > 1
        assert staged_bytes(tile._replace(num_stages=tile.num_stages + 1), 2) <= ROOM["H100"]
        least = most + 1
    if N > 768:  # behind a LayerNorm
        assert all(tile.split_k == 1 for _, tile in rows)


def test_sizes_that_nobody_measured_make_programs_for_most_of_the_gpu():
    for M, N, K in ((1, 1024, 1024), (8, 3072, 1024), (64, 4096, 1024), (300, 1024, 4096)):
        tile = tile_of(M, N, K)
        programs = -(-M // tile.block_m) * -(-N // tile.block_n) * tile.split_k
        assert programs >= 70, (M, N, K)
    assert tile_of(1, 50257, 768) == Tile(16, 64, 128, 1, 4, 4)  # the logits
    assert tile_of(8, 192, 64, can_split=False) == Tile(16, 16, 64, 1, 4, 2)  # the tiny model's
    assert tile_of(8, 64, 256) == Tile(16, 32, 128, 2, 4, 3)


# --- what the wrappers refuse ----------------------------------------------------------------------


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


# --- on a GPU --------------------------------------------------------------------------------------

BATCHES = [1, 8, 64, 128, 256]


@pytest.mark.cuda
@dtypes
@pytest.mark.parametrize("M", [*BATCHES, 17, 100])
@pytest.mark.parametrize("N, K", TILES, ids=str)
def test_on_a_gpu_it_is_its_definition_at_full_size(N: int, K: int, M: int, dtype: torch.dtype):
    case = make_case(M, N, K, dtype, "cuda")
    if N == 768:
        assert_is_linear_and_residual(linear_residual_triton, case)
    else:  # in the parts that the layer before leaves
        width = tile_of(M, 768, K).block_n
        assert_is_layer_norm_then_linear(norm_linear_triton, case, width, gelu=N == 3072)


@pytest.mark.cuda
@pytest.mark.parametrize("M", BATCHES)
@pytest.mark.parametrize("K", [768, 3072])
def test_on_a_gpu_the_same_arguments_give_the_same_bits(K: int, M: int):
    arguments = residual_arguments(make_case(M, 768, K, torch.float16, "cuda"))
    arguments["workspace"] = make_split_k_workspace(torch.device("cuda"))
    assert tile_of(M, 768, 3072).split_k > 1
    expected = tensors_of(linear_residual_triton(**arguments))
    for _ in range(200):
        assert all(map(torch.equal, tensors_of(linear_residual_triton(**arguments)), expected))
    assert not arguments["workspace"].counters.any()


class Layer:
    """The linear layers of a GPT-2 block and of the next one's beginning, with nothing between them: each
    kernel reads what the one before it has just written."""

    def __init__(self, M: int, dtype: torch.dtype) -> None:
        sizes = {"qkv": (2304, 768), "attn": (768, 768), "fc": (3072, 768), "proj": (768, 3072)}
        cases = {
            name: make_case(M, N, K, dtype, "cuda", seed) for seed, (name, (N, K)) in enumerate(sizes.items())
        }
        self.x = cases["qkv"]["x"]
        self.qkv, self.fc = fold(cases["qkv"]), fold(cases["fc"])
        self.attn, self.proj = ((cases[name]["weight"], cases[name]["bias"]) for name in ("attn", "proj"))
        self.workspace = make_split_k_workspace(torch.device("cuda"))

    def __call__(self) -> list[Tensor]:
        """Everything that a kernel made, in order."""
        qkv = norm_linear_triton(self.x, row_statistics(self.x, 768), self.qkv)
        x, first = linear_residual_triton(qkv[:, :768], *self.attn, self.x, workspace=self.workspace)
        inner = norm_linear_triton(x, first, self.fc, gelu=True)
        y, second = linear_residual_triton(inner, *self.proj, x, workspace=self.workspace)
        last = norm_linear_triton(y, second, self.qkv)
        return [qkv, x, first.parts, inner, y, second.parts, last]


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("M", BATCHES)
def test_on_a_gpu_a_graph_of_a_chain_replayed_gives_the_bits_of_the_chain(
    monkeypatch: pytest.MonkeyPatch, M: int, dtype: torch.dtype
):
    """A kernel that begins before the one in front of it has ended reads nothing of it too early: not in a
    graph, not without, and the same as where every kernel waits for the whole of the one before."""
    layer = Layer(M, dtype)
    layer()  # compiled
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = layer()
    like = torch.Generator("cuda").manual_seed(1)
    seen = set()
    for _ in range(50):
        layer.x.copy_(torch.randn(layer.x.shape, generator=like, device="cuda"))
        eager = layer()
        with monkeypatch.context() as patch:
            patch.setattr(fused_linear, "early_launch", lambda device: {"EARLY": False})
            one_by_one = layer()
        for tensor in replayed:
            tensor.fill_(torch.nan)
        graph.replay()
        for made in (replayed, eager):
            assert all(map(torch.equal, made, one_by_one))
        seen.add(replayed[-1].float().sum().item())
    assert len(seen) == 50
    assert not layer.workspace.counters.any()


@pytest.mark.cuda
@pytest.mark.parametrize("M", BATCHES)
def test_on_a_gpu_many_replays_in_a_row_race_with_nobody(M: int):
    """Each begins on what the last one left, and nothing waits between them."""
    layer = Layer(M, torch.float16)

    def move_on() -> list[Tensor]:
        made = layer()
        layer.x.copy_(F.layer_norm(made[4].float(), (768,)))  # else numbers grow without end
        return made

    start = layer.x.clone()
    move_on()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        move_on()
    layer.x.copy_(start)
    for _ in range(50):
        graph.replay()
    replayed = layer.x.clone()
    layer.x.copy_(start)
    for _ in range(50):
        move_on()
        torch.cuda.synchronize()
    assert torch.equal(replayed, layer.x)
    assert replayed.isfinite().all() and not torch.equal(replayed, start)
