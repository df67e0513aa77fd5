"""Tiles with a ring: what is refused, and on a Hopper GPU what a launch computes."""

import pytest
import torch
from fused_linear_cases import (
    TOLERANCE,
    assert_is_layer_norm_then_linear,
    assert_is_linear_and_residual,
    make_case,
    norm_arguments,
    residual_arguments,
    rms_arguments,
    rms_norm_then_linear,
)

from labkit.kernels import linear_residual_triton, norm_linear_triton, ring_linear
from labkit.kernels.linear_residual import make_split_k_workspace
from labkit.kernels.ring_linear import check_ring, has_ring_kernels
from labkit.kernels.tiles import Tile, check_tile, default_tile, tile_of

RING = Tile(64, 32, 64, 1, 4, 3, ring=True)
HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
ROWS = pytest.mark.parametrize("M", [1, 17, 64, 100, 256])
SIZES = {"whole boxes": (2304, 768), "no multiple of a box": (200, 328), "less than a box": (8, 24)}
TILES = {
    "few stages": RING,
    "a stage for each box": Tile(64, 16, 128, 1, 4, 16, ring=True),
    "wide": Tile(128, 128, 64, 1, 8, 4, ring=True),
    "widest": Tile(64, 256, 64, 1, 4, 3, ring=True),
    "in three parts": Tile(64, 64, 64, 3, 4, 2, ring=True),
}


@pytest.fixture
def hopper() -> torch.device:
    device = torch.device("cuda")
    if not has_ring_kernels(device):
        pytest.skip("needs a Hopper GPU")
    return device


def test_without_a_hopper_gpu_a_ring_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ring_linear, "has_ring_kernels", lambda device: False)
    case = make_case(64, 64, 64, torch.float16)
    for function, arguments in (
        (norm_linear_triton, norm_arguments(case)),
        (linear_residual_triton, residual_arguments(case)),
    ):
        with pytest.raises(ValueError, match=r"^tile.ring needs a Hopper GPU"):
            function(**arguments, tile=RING)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(4, 64), r"^x is torch.float32 .* must have 16 bits"),
        (torch.zeros(4, 68).half()[:, :64], r"^x is torch.float16 with strides \(68, 1\)"),
        (torch.zeros(4 * 64 + 1).half()[1:].view(4, 64), r"^x .* begin at multiples of 16 bytes$"),
    ],
)
def test_what_the_tma_cannot_read_is_refused(monkeypatch: pytest.MonkeyPatch, x: torch.Tensor, message: str):
    monkeypatch.setattr(ring_linear, "has_ring_kernels", lambda device: True)
    with pytest.raises(ValueError, match=message):
        check_ring(x, torch.zeros(8, 64).half())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("block_m", 32, "expected block_m 64 and 4 warps, or 128 and 8$"),
        ("block_k", 32, "expected block_k 64 to 256"),
        ("block_n", 512, "block_n up to 256"),
        ("num_stages", 1, "2 stages or more$"),
    ],
)
def test_a_ring_that_no_kernel_has_is_refused(field: str, value: int, message: str):
    with pytest.raises(ValueError, match=message):
        check_tile(RING._replace(**{field: value}), can_split=True)


def test_where_the_tma_cannot_read_an_engine_takes_the_tile_by_rule():
    measured = {(64, 64): {16: RING}}
    weight, unaligned = torch.zeros(64, 64).half(), torch.zeros(3 * 64 + 1).half()[1:].view(3, 64)
    assert default_tile(torch.zeros(3, 64).half(), weight, measured, can_split=True) == RING
    assert default_tile(unaligned, weight, measured, can_split=True) == tile_of(3, 64, 64)


@pytest.mark.cuda
@HALVES
@ROWS
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
def test_on_a_gpu_it_is_its_definition(
    hopper: torch.device, tile: Tile, sizes: tuple[int, int], M: int, dtype: torch.dtype
):
    (N, K), workspace = sizes, make_split_k_workspace(hopper)
    workspace.partials.fill_(torch.nan)
    case = make_case(M, N, K, dtype, "cuda")
    for _ in range(2):
        statistics = assert_is_linear_and_residual(
            linear_residual_triton, case, tile=tile, workspace=workspace
        )
        assert statistics.width == tile.block_n and not workspace.counters.any()
    whole = tile._replace(split_k=1)
    for width, gelu in ((64, True), (7, False)):
        assert_is_layer_norm_then_linear(norm_linear_triton, case, width, gelu=gelu, tile=whole)


@pytest.mark.cuda
@HALVES
@ROWS
@pytest.mark.parametrize("block_m, block_n", [(64, 16), (64, 32), (64, 64), (128, 64), (64, 128)])
def test_on_a_gpu_a_gate_behind_an_rms_norm_is_its_definition(
    hopper: torch.device, block_m: int, block_n: int, M: int, dtype: torch.dtype, N: int = 208, K: int = 576
):
    case = make_case(M, N, K, dtype, "cuda")
    tile = Tile(block_m, block_n, 64, 1, block_m // 16, 3, ring=True)
    out = norm_linear_triton(**rms_arguments(case | {"bias": None}, True, width=64), tile=tile)
    tolerance = 2 * TOLERANCE[dtype]
    expected = rms_norm_then_linear(case | {"bias": None}, True)
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.cuda
def test_on_a_gpu_no_rows_make_no_result(hopper: torch.device):
    case = make_case(0, 32, 64, torch.float16, "cuda")
    assert norm_linear_triton(**norm_arguments(case), tile=RING).shape == (0, 32)
    out, statistics = linear_residual_triton(**residual_arguments(case), tile=RING)
    assert out.shape == (0, 32) and statistics.parts.shape == (0, 1, 2)
