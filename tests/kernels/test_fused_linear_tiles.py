"""The tiles of the fused linear kernels: which is taken for a size, and whether a GPU has room for it."""

from collections.abc import Callable

import pytest
import torch
from fused_linear_cases import KERNEL_DEVICE, make_case, needs_triton, norm_arguments
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.kernels import (
    fused_linear,
    norm_linear_triton,
)
from labkit.kernels.fused_linear import (
    TILES,
    Tile,
    make_split_k_workspace,
    staged_bytes,
    tile_of,
    tile_with_room,
)


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
