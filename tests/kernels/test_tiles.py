"""The tiles of the fused linear kernels: which is taken for a size, and whether a GPU has room for it."""

import pytest
import torch
from fused_linear_cases import make_case, norm_arguments
from hypothesis import given, settings
from hypothesis import strategies as st
from triton_marks import KERNEL_DEVICE, StandIn, needs_triton

from labkit.kernels import fused_linear, linear_residual, norm_linear_triton, tiles
from labkit.kernels.linear_residual import make_split_k_workspace
from labkit.kernels.tiles import (
    TILES,
    Tile,
    check_tile,
    default_tile,
    has_workspace,
    measured_tile,
    num_programs,
    staged_bytes,
    tile_of,
    tile_with_room,
)


@pytest.mark.parametrize("can_split", [True, False])
@settings(max_examples=200)
@given(
    st.integers(1, 300),
    st.tuples(st.integers(1, 60_000), st.integers(1, 20_000)) | st.sampled_from(list(TILES)),
)
def test_any_size_has_a_tile_for_which_there_is_room(can_split: bool, M: int, NK: tuple[int, int]):
    N, K = NK
    tile = check_tile(tile_of(M, N, K, can_split=can_split), can_split)
    assert has_workspace(tile, M, N)
    if tile.split_k > 1:
        workspace = make_split_k_workspace(torch.device("meta"))
        num_tiles = -(-M // tile.block_m) * -(-N // tile.block_n)
        linear_residual.check_workspace(workspace, torch.device("meta"), num_tiles, tile)


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
    monkeypatch.setattr(tiles, "shared_memory_of", lambda device: 40 * 2**10)
    x = torch.empty(3, 768, dtype=dtype, device=KERNEL_DEVICE)
    expected = Tile(16, 64, block_k, 1, 4, stages)  # of 6
    weight = torch.empty(2304, 768, dtype=dtype, device=KERNEL_DEVICE)
    assert default_tile(x, weight, can_split=False) == expected
    launched = []
    kernel = StandIn(lambda *_, BLOCK_K, num_stages, **options: launched.append((BLOCK_K, num_stages)))
    monkeypatch.setattr(fused_linear, "_norm_linear_kernel", kernel)
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
        assert num_programs(tile, M, N) >= 70, (M, N, K)
    assert tile_of(1, 50257, 768) == Tile(16, 64, 128, 1, 4, 4)  # the logits
    assert tile_of(8, 192, 64, can_split=False) == Tile(16, 16, 64, 1, 4, 2)  # the tiny model's
    assert tile_of(8, 64, 256) == Tile(16, 32, 128, 2, 4, 3)


# --- tiles that were measured ---------------------------------------------------------------------------

FEW, MANY, SPLIT = Tile(16, 32, 64, 1, 4, 3), Tile(64, 32, 64, 1, 4, 3), Tile(16, 32, 64, 4, 4, 3)
MEASURED = {(2304, 768): {16: FEW, 128: MANY}, (99, 64): {64: SPLIT}}


ALONE = Tile(1, 4, 64, 1, 4, 1)
OF_ONE_ROW = {(9, 8): {1: ALONE, 16: FEW}}


@pytest.mark.parametrize(
    ("measured", "M", "NK", "can_split", "tile"),
    [
        # A tile serves the rows up to its own, and no others.
        *(
            (MEASURED, M, (2304, 768), False, tile)
            for M, tile in ((16, FEW), (17, None), (64, None), (65, MANY), (128, MANY), (129, None))
        ),
        # A single row has a tile of its own, or that of few.
        (MEASURED, 1, (2304, 768), False, FEW),
        (OF_ONE_ROW, 1, (9, 8), False, ALONE),
        (OF_ONE_ROW, 2, (9, 8), False, FEW),
        # It is of its product, and split only where it may be.
        (MEASURED, 8, (768, 2304), True, None),
        (MEASURED, 20, (99, 64), True, SPLIT),
        (MEASURED, 20, (99, 64), False, None),
    ],
)
def test_a_measured_tile_serves_its_product_and_rows_and_no_others(measured, M, NK, can_split, tile):
    assert measured_tile(measured, M, *NK, can_split=can_split) == tile


def test_a_measured_tile_is_as_it_was_measured_if_there_is_room(monkeypatch: pytest.MonkeyPatch):
    x, weight = (torch.empty(n, 768, device=KERNEL_DEVICE) for n in (8, 2304))
    monkeypatch.setattr(tiles, "shared_memory_of", lambda device: 2**20)
    # Of float32, and not cut to a quarter of its inputs.
    assert default_tile(x, weight, MEASURED, can_split=False) == FEW
    monkeypatch.setattr(tiles, "shared_memory_of", lambda device: staged_bytes(FEW, 4) - 1)
    assert default_tile(x, weight, MEASURED, can_split=False) == FEW._replace(num_stages=2)


def test_a_split_tile_needs_room_for_its_parts():
    assert has_workspace(Tile(64, 64, 64, 8, 4, 3), 64, 4096)  # 2^21 partial sums
    assert not has_workspace(Tile(64, 64, 64, 8, 4, 3), 64, 4097)
    assert not has_workspace(Tile(16, 16, 64, 2, 4, 3), 16, 16 * 4097)  # more tiles than counters
    assert has_workspace(Tile(16, 16, 64, 1, 4, 3), 16, 10**9)
