"""The linear layers of a block, plain and fused in Triton, against their definition in float64."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from labkit.kernels import (
    fused_linear,
    layer_norm_linear_plain,
    layer_norm_linear_triton,
    linear_residual_plain,
    linear_residual_triton,
    triton_status,
)
from labkit.kernels.fused_linear import TILES, Tile, make_split_k_workspace, split_k_workspace_of, tile_of

# Kernels run in the interpreter on CPU tensors, or compiled on the GPU's.
NATIVE = triton_status().mode == "native"
KERNEL_DEVICE = "cuda" if NATIVE else "cpu"
# Half precision: a few units in the last place, for the twins round after every step.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2**-8, torch.bfloat16: 2**-5}
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
LAYER_NORM_LINEAR = [
    pytest.param(layer_norm_linear_plain, id="plain"),
    pytest.param(layer_norm_linear_triton, id="triton", marks=needs_triton),
]
LINEAR_RESIDUAL = [
    pytest.param(linear_residual_plain, id="plain"),
    pytest.param(linear_residual_triton, id="triton", marks=needs_triton),
]


def randn(*shape: int, like: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=like, device=like.device).to(dtype)


def make_case(
    function: Callable,
    M: int = 3,
    N: int = 33,
    K: int = 40,
    dtype: torch.dtype = torch.float32,
    device: str = KERNEL_DEVICE,
) -> dict[str, Tensor]:
    """The arguments of one call, by name. Results are of about the size of 1."""
    like = torch.Generator(device).manual_seed(0)
    linear = {
        "x": randn(M, K, like=like, dtype=dtype),
        "weight": (randn(N, K, like=like, dtype=torch.float32) * K**-0.5).to(dtype),
        "bias": randn(N, like=like, dtype=dtype),
    }
    if function in (linear_residual_plain, linear_residual_triton):
        return linear | {"residual": randn(M, N, like=like, dtype=dtype)}
    norm = {"norm_weight": randn(K, like=like, dtype=dtype), "norm_bias": randn(K, like=like, dtype=dtype)}
    return linear | norm | {"eps": EPS}


def definition(arguments: dict) -> Tensor:
    """In float64: [M, N]."""
    a = {name: value.double() if isinstance(value, Tensor) else value for name, value in arguments.items()}
    x = a["x"]
    if "norm_weight" in a:
        centered = x - x.mean(1, keepdim=True)
        normed = centered / (centered.square().mean(1, keepdim=True) + a["eps"]).sqrt()
        x = normed * a["norm_weight"] + a["norm_bias"]
    out = x @ a["weight"].T
    if a["bias"] is not None:
        out = out + a["bias"]
    if a.get("gelu"):
        out = 0.5 * out * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (out + 0.044715 * out**3)))
    return out + a["residual"] if "residual" in a else out


def assert_is_its_definition(function: Callable, arguments: dict, **options: object) -> Tensor:
    x, weight = arguments["x"], arguments["weight"]
    out = function(**arguments, **options)
    assert (out.shape, out.dtype, out.device) == ((len(x), len(weight)), x.dtype, x.device)
    tolerance = TOLERANCE[x.dtype]
    torch.testing.assert_close(out.double(), definition(arguments), rtol=tolerance, atol=tolerance)
    return out


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


# --- LayerNorm, linear, GELU -----------------------------------------------------------------------


@dtypes
@small
@devices
@pytest.mark.parametrize("gelu", [False, True], ids=["linear", "gelu"])
@pytest.mark.parametrize("function", LAYER_NORM_LINEAR)
def test_it_is_layer_norm_then_linear(
    function: Callable, gelu: bool, device: str, sizes: tuple[int, int, int], dtype: torch.dtype
):
    arguments = make_case(function, *sizes, dtype=dtype, device=device)
    assert_is_its_definition(function, arguments | {"gelu": gelu})


@needs_triton
@tiled
@devices
@pytest.mark.parametrize("sizes", [(3, 33, 75), (65, 17, 130)], ids=str)
def test_layer_norm_linear_is_the_same_in_any_tile(device: str, sizes: tuple, tile: Tile | None):
    arguments = make_case(layer_norm_linear_triton, *sizes, device=device)
    assert_is_its_definition(layer_norm_linear_triton, arguments | {"gelu": True}, tile=tile)


@pytest.mark.parametrize("K", [40, 300], ids=["one block", "more than one"])
@devices
@pytest.mark.parametrize("function", LAYER_NORM_LINEAR)
def test_rows_of_a_large_mean_keep_their_variance(function: Callable, device: str, K: int):
    """As the mean of the squares less the square of the mean, in float32, it would be off by 1 in 1."""
    arguments = make_case(function, K=K, device=device)
    arguments["x"] += 4096
    expected = definition(arguments)
    torch.testing.assert_close(function(**arguments).double(), expected, rtol=3e-3, atol=3e-3)


@pytest.mark.parametrize("function", LAYER_NORM_LINEAR)
def test_rows_without_variance_are_the_bias_of_the_norm(function: Callable):
    arguments = make_case(function)
    arguments["x"].fill_(2.5)
    assert_is_its_definition(function, arguments)


@devices
@pytest.mark.parametrize("function", LAYER_NORM_LINEAR)
def test_gelu_of_large_numbers_does_not_overflow(function: Callable, device: str):
    arguments = make_case(function, device=device) | {"gelu": True}
    arguments["bias"][:4] = torch.tensor([-1e4, -100.0, 100.0, 1e4])
    assert_is_its_definition(function, arguments)


@needs_triton
def test_a_layer_norm_is_not_split():
    arguments = make_case(layer_norm_linear_triton)
    with pytest.raises(ValueError, match=r"^tile.split_k is 2, but a LayerNorm's row cannot be split"):
        layer_norm_linear_triton(**arguments, tile=Tile(16, 16, 16, 2, 4, 2))


# --- linear, residual ------------------------------------------------------------------------------


@dtypes
@small
@devices
@pytest.mark.parametrize("function", LINEAR_RESIDUAL)
def test_it_is_linear_and_residual(
    function: Callable, device: str, sizes: tuple[int, int, int], dtype: torch.dtype
):
    assert_is_its_definition(function, make_case(function, *sizes, dtype=dtype, device=device))


@needs_triton
@dtypes
@devices
@pytest.mark.parametrize("split_k", [1, 2, 3, 4])
@pytest.mark.parametrize("block_m, block_n", [(16, 32), (64, 16)])
def test_a_tile_may_be_shared(block_m: int, block_n: int, split_k: int, device: str, dtype: torch.dtype):
    """K is five blocks: the parts are not of one size, and of four, one is empty."""
    workspace = make_split_k_workspace(torch.device(device), num_partials=2**14, num_tiles=16)
    workspace.partials.fill_(torch.nan)
    arguments = make_case(linear_residual_triton, 17, 40, 75, dtype, device)
    tile = Tile(block_m, block_n, 16, split_k, 4, 2)
    for _ in range(2):
        assert_is_its_definition(linear_residual_triton, arguments, tile=tile, workspace=workspace)
        assert not workspace.counters.any()  # it can be launched again


@needs_triton
@devices
def test_parts_are_added_in_their_order(device: str):
    """1e8 and -1e8 first, then 1: in any other order the 1 is lost."""
    arguments = make_case(linear_residual_triton, 1, 16, 48, device=device)
    x, weight, bias, residual = (arguments[name] for name in ("x", "weight", "bias", "residual"))
    weight.zero_(), bias.zero_(), residual.zero_(), x.fill_(1)
    weight[:, 0], weight[:, 16], weight[:, 32] = 1e8, -1e8, 1
    out = linear_residual_triton(**arguments, tile=Tile(16, 16, 16, 3, 4, 2))
    assert (out == 1).all()


@needs_triton
def test_the_default_workspace_is_made_once_and_left_as_it_was():
    device = torch.device(KERNEL_DEVICE, 0) if NATIVE else torch.device(KERNEL_DEVICE)
    arguments = make_case(linear_residual_triton, M=5, N=20, K=200)
    assert tile_of(5, 20, 200).split_k > 1
    assert_is_its_definition(linear_residual_triton, arguments)
    workspace = split_k_workspace_of(device)
    assert workspace is split_k_workspace_of(device)
    assert not workspace.counters.any()


@needs_triton
def test_counters_are_cleared_if_a_launch_is_interrupted(monkeypatch: pytest.MonkeyPatch):
    workspace = make_split_k_workspace(torch.device(KERNEL_DEVICE), num_partials=2**12, num_tiles=4)

    class Interrupted:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable:
            def launch(*args: object, **kwargs: object) -> None:
                workspace.counters[0] += 1
                raise KeyboardInterrupt

            return launch

    arguments = make_case(linear_residual_triton)
    options = {"tile": Tile(16, 16, 16, 2, 4, 2), "workspace": workspace}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(fused_linear, "_linear_residual_kernel", Interrupted())
        linear_residual_triton(**arguments, **options)
    assert not workspace.counters.any()
    assert_is_its_definition(linear_residual_triton, arguments, **options)


def test_no_workspace_is_made_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match=r"^workspace is first needed while a CUDA graph is captured"):
        split_k_workspace_of.__wrapped__(torch.device("cuda", 0))


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
    arguments = make_case(linear_residual_triton, M=17)
    workspace = make_split_k_workspace(torch.device(KERNEL_DEVICE), **sizes)
    with pytest.raises(ValueError, match=f"^{message}"):
        linear_residual_triton(**arguments, tile=Tile(16, 16, 16, 2, 4, 2), workspace=workspace)


# --- both ------------------------------------------------------------------------------------------

EACH = [
    pytest.param(parameter.values[0], id=f"{name}-{parameter.id}", marks=parameter.marks)
    for name, pair in (("layer_norm_linear", LAYER_NORM_LINEAR), ("linear_residual", LINEAR_RESIDUAL))
    for parameter in pair
]
TRITON = [
    pytest.param(layer_norm_linear_triton, id="layer_norm_linear", marks=needs_triton),
    pytest.param(linear_residual_triton, id="linear_residual", marks=needs_triton),
]


@pytest.mark.parametrize("function", EACH)
def test_a_layer_may_be_without_bias(function: Callable):
    assert_is_its_definition(function, make_case(function) | {"bias": None})


@pytest.mark.parametrize("function", EACH)
def test_rows_may_be_part_of_wider_ones(function: Callable):
    arguments = make_case(function, M=18)
    for name in arguments.keys() & {"x", "residual"}:
        wider = torch.full((18, 2 * arguments[name].shape[1]), torch.nan, device=KERNEL_DEVICE)
        wider[:, : arguments[name].shape[1]] = arguments[name]
        arguments[name] = wider[:, : arguments[name].shape[1]]
    assert_is_its_definition(function, arguments)


@pytest.mark.parametrize("function", EACH)
def test_arguments_stay_as_they_are(function: Callable):
    arguments, before = make_case(function), make_case(function)
    function(**arguments)
    for name, value in arguments.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(before[name])), name


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, in the interpreter
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("where", ["one number", "the row"])
@devices
@pytest.mark.parametrize("function", EACH)
def test_a_broken_row_spoils_no_other(function: Callable, device: str, where: str, value: float):
    arguments = make_case(function, M=18, device=device)
    expected = function(**arguments)
    others = [m for m in range(18) if m != 1]
    x = arguments["x"].clone()
    x[1, 7 if where == "one number" else slice(None)] = value
    out = function(**arguments | {"x": x})
    assert torch.equal(out[others], expected[others])
    assert not out[1].isfinite().any()


@pytest.mark.parametrize("function", EACH)
def test_no_rows_make_no_result(function: Callable):
    assert function(**make_case(function, M=0)).shape == (0, 33)


@needs_triton
@pytest.mark.parametrize("function", TRITON)
@settings(max_examples=20)
@given(data=st.data())
def test_it_is_its_definition_at_any_size_and_in_any_tile(function: Callable, data: st.DataObject):
    sizes = data.draw(st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 80)))
    split_k = data.draw(st.integers(1, 5)) if function is linear_residual_triton else 1
    blocks = st.sampled_from([16, 32, 64])
    tile = Tile(data.draw(blocks), data.draw(blocks), data.draw(blocks), split_k, 4, 2)
    assert_is_its_definition(
        function, make_case(function, *sizes), tile=data.draw(st.sampled_from([None, tile]))
    )


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


def test_small_batches_of_gpt2_make_programs_for_most_of_the_gpu():
    for (N, K), rows in TILES.items():
        for M, tile in rows:
            assert tile_of(M, N, K) == tile
            programs = -(-M // tile.block_m) * -(-N // tile.block_n) * tile.split_k
            assert programs >= 70, (N, K, M)
    assert tile_of(1, 50257, 768) == Tile(16, 64, 128, 1, 4, 4)  # the logits
    assert tile_of(8, 192, 64, can_split=False) == Tile(16, 16, 64, 1, 4, 2)  # the tiny model's
    assert tile_of(8, 64, 256) == Tile(16, 32, 128, 2, 4, 3)


# --- what the wrappers refuse ----------------------------------------------------------------------


def strided(tensor: Tensor) -> Tensor:
    """The same values, the last dimension two apart."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def on_meta(tensor: Tensor) -> Tensor:
    return tensor.to("meta")


LINEAR = {
    "rows of another rank": ("x", lambda x: x[0], r"x has shape \[40\], expected \[M, K\]"),
    "rows with gaps": ("x", strided, r"x has strides \(80, 2\), expected the last dimension"),
    "rows of float64": ("x", Tensor.double, r"x is torch.float64, expected one of torch.float16, "),
    "rows of integers": ("x", Tensor.int, r"x is torch.int32, expected one of torch.float16"),
    "weights of other inputs": (
        "weight",
        lambda w: w[:, 1:],
        r"weight has shape \[33, 39\], expected \[N, 40",
    ),
    "weights of another dtype": ("weight", Tensor.half, r"weight is torch.float16, expected torch.float32"),
    "weights on another device": ("weight", on_meta, r"weight is on meta, expected"),
    "weights by column": ("weight", lambda w: w.T.contiguous().T, r"weight has strides \(1, 33\), expected"),
    "weights of wider rows": (
        "weight",
        lambda w: torch.cat([w, w], dim=1)[:, :40],
        r"weight has strides \(80, 1\), expected \(40, 1\): contiguous",
    ),
    "biases of other outputs": ("bias", lambda b: b[1:], r"bias has shape \[32\], expected \[33\]"),
    "biases of another dtype": ("bias", Tensor.half, r"bias is torch.float16"),
    "biases on another device": ("bias", on_meta, r"bias is on meta"),
    "biases with gaps": ("bias", strided, r"bias has strides \(2,\)"),
}
NORM = {
    f"{name} {what}": (name, change, f"{name} {message}")
    for name in ("norm_weight", "norm_bias")
    for what, change, message in (
        ("of other inputs", lambda t: t[1:], r"has shape \[39\], expected \[40\]"),
        ("of another dtype", Tensor.half, r"is torch.float16, expected torch.float32"),
        ("on another device", on_meta, r"is on meta"),
        ("with gaps", strided, r"has strides \(2,\)"),
    )
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
REFUSED = [
    pytest.param(function.values[0], *case, id=f"{function.id}-{what}", marks=function.marks)
    for function in EACH
    for what, case in (LINEAR | (RESIDUAL if "residual" in function.id else NORM)).items()
]


@pytest.mark.parametrize("function, name, change, message", REFUSED)
def test_what_does_not_fit_is_refused_by_name(function: Callable, name: str, change: Callable, message: str):
    arguments = make_case(function)
    with pytest.raises(ValueError, match=f"^{message}"):
        function(**arguments | {name: change(arguments[name])})


@pytest.mark.parametrize("function", EACH)
def test_weights_past_the_reach_of_32_bits_are_refused(function: Callable):
    """Nothing is reserved: tensors of the meta device have no numbers."""
    arguments = {
        name: value.to("meta") if isinstance(value, Tensor) else value
        for name, value in make_case(function, M=2, N=4, K=2**14).items()
    }
    N = 2**17 + 1
    larger = {"weight": arguments["weight"][:1].repeat(N, 1), "bias": arguments["bias"][:1].repeat(N)}
    with pytest.raises(ValueError, match=r"^weight of shape \[131073, 16384\] .* more than 2\^31 numbers"):
        function(**arguments | larger)


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
        function(**make_case(function), tile=tile)


# --- on a GPU --------------------------------------------------------------------------------------

GPT2 = [
    pytest.param(function, N, K, id=f"{N}-{K}")
    for (N, K) in TILES
    for function in [linear_residual_triton if N == 768 else layer_norm_linear_triton]
]


@pytest.mark.cuda
@dtypes
@pytest.mark.parametrize("M", [1, 8, 17, 64, 100, 256])
@pytest.mark.parametrize("function, N, K", GPT2)
def test_on_a_gpu_it_is_its_definition_at_full_size(
    function: Callable, N: int, K: int, M: int, dtype: torch.dtype
):
    arguments = make_case(function, M, N, K, dtype, "cuda")
    gelu = {"gelu": True} if N == 3072 else {}
    assert_is_its_definition(function, arguments | gelu)


@pytest.mark.cuda
@pytest.mark.parametrize("M", [1, 64, 256])
@pytest.mark.parametrize("K", [768, 3072])
def test_on_a_gpu_the_same_arguments_give_the_same_bits(K: int, M: int):
    arguments = make_case(linear_residual_triton, M, 768, K, torch.float16, "cuda")
    assert tile_of(M, 768, K).split_k > 1
    expected = linear_residual_triton(**arguments)
    for _ in range(200):
        assert torch.equal(linear_residual_triton(**arguments), expected)


@pytest.mark.cuda
def test_on_a_gpu_a_graph_of_both_can_be_replayed_with_other_numbers():
    norm = make_case(layer_norm_linear_triton, 8, 3072, 768, torch.float16, "cuda")
    back = make_case(linear_residual_triton, 8, 768, 3072, torch.float16, "cuda")
    x = norm["x"]

    def mlp() -> Tensor:
        inner = layer_norm_linear_triton(**norm, gelu=True)
        return linear_residual_triton(inner, back["weight"], back["bias"], residual=x)

    mlp()  # compiled, and the workspace made
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = mlp()
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        expected = mlp()
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, expected)
        inner = definition(norm | {"gelu": True}).half()
        wanted = definition({**back, "x": inner, "residual": x})
        torch.testing.assert_close(out.double(), wanted, rtol=2**-8, atol=2**-8)
