"""The file of measured tiles: what is kept comes back, and a damaged file is named."""

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from labkit import paths
from labkit.errors import RecordError
from labkit.kernels import tile_tables
from labkit.kernels.tile_tables import (
    SHIPPED,
    TimedTile,
    keep_table,
    measured_tiles,
    read_table,
    shipped_path,
    table_path,
    tiles_for,
)
from labkit.kernels.tiles import Tile
from labkit.kernels.triton_runtime import TritonStatus
from labkit.model.random_configs import RANDOM_CONFIGS

CUDA = torch.device("cuda:0")
FEW, MANY = Tile(16, 32, 64, 2, 4, 3), Tile(64, 32, 128, 1, 8, 4)
SINGLE = TimedTile(1024, 1024, "float32", 64, MANY, 9.0)
TABLE = [
    SINGLE,
    TimedTile(3072, 1024, "float16", 16, FEW, 2.5),
    TimedTile(3072, 1024, "float16", 64, MANY, 9.0),
]


@pytest.fixture
def gpu(monkeypatch, tmp_path) -> Path:
    """A GPU by name alone; the value is the user's cache, empty."""
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache" / "labkit")
    monkeypatch.setattr(tile_tables, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    monkeypatch.setattr(tile_tables, "triton", SimpleNamespace(__version__="3.6.0"))
    monkeypatch.setattr(tile_tables, "triton_status", lambda: TritonStatus("native", "there is a CUDA GPU"))
    return paths.CACHE


def test_a_file_is_named_after_the_gpu_and_the_versions(gpu):
    assert table_path(CUDA) == gpu / "tiles_nvidia_h100_80gb_hbm3_torch_2_11_0_cu130_triton_3_6_0.json"


def test_what_is_kept_comes_back_for_numbers_of_its_size(gpu):
    assert tiles_for(CUDA, torch.float16) == {}
    keep_table(table_path(CUDA), TABLE)
    assert read_table(table_path(CUDA)) == TABLE
    half = {(3072, 1024): {16: FEW, 64: MANY}}
    assert tiles_for(CUDA, torch.float16) == tiles_for(CUDA, torch.bfloat16) == half
    assert tiles_for(CUDA, torch.float32) == {(1024, 1024): {64: MANY}}
    assert measured_tiles(TABLE, torch.float64) == {}
    assert [path.name for path in gpu.iterdir()] == [table_path(CUDA).name]


def test_models_are_added_and_the_latest_wins_row_by_row(gpu):
    path = table_path(CUDA)
    keep_table(path, TABLE)
    new = [
        TABLE[2]._replace(tile=FEW, us=3.0),
        TABLE[2]._replace(rows=128),
        TABLE[1]._replace(dtype="bfloat16"),
        TimedTile(7, 9, "float16", 16, FEW, 1.0),
    ]
    keep_table(path, new)
    assert sorted(read_table(path)) == sorted([*TABLE[:2], *new])


def test_what_labkit_ships_for_the_gpu_comes_behind_what_the_user_measured(gpu):
    shipped = [TABLE[1]._replace(tile=MANY), TABLE[2]._replace(rows=128), TABLE[1]._replace(N=9)]
    assert shipped_path(CUDA).name == "nvidia_h100_80gb_hbm3.json"
    keep_table(shipped_path(CUDA), shipped)
    half = torch.float16
    alone = {(3072, 1024): {16: MANY, 128: MANY}, (9, 1024): {16: FEW}}
    assert tiles_for(CUDA, half) == alone
    keep_table(table_path(CUDA), TABLE)
    assert tiles_for(CUDA, half) == {(3072, 1024): {16: FEW, 64: MANY, 128: MANY}, (9, 1024): {16: FEW}}


def test_another_hopper_takes_an_h100s_tiles_for_products_that_were_not_measured_on_it(gpu, monkeypatch):
    ring = Tile(64, 32, 64, 1, 4, 3, ring=True)
    keep_table(shipped_path(CUDA), [*TABLE, TABLE[1]._replace(tile=ring)])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    own = [TABLE[1]._replace(rows=128), TABLE[1]._replace(N=9)]
    keep_table(shipped_path(CUDA), own)
    half, single = torch.float16, torch.float32
    mine = {(3072, 1024): {128: FEW}, (9, 1024): {16: FEW}}
    assert tiles_for(CUDA, half) == mine
    with monkeypatch.context() as patch:
        patch.setattr(tile_tables, "HAS_GLUON", False)
        assert tiles_for(CUDA, half, can_hold=True) == mine
    mine[3072, 1024][16] = ring  # beside what is not held
    assert tiles_for(CUDA, half, can_hold=True) == mine
    assert tiles_for(CUDA, single) == {(1024, 1024): {64: MANY}}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert tiles_for(CUDA, single) == {}


def test_a_held_tile_is_beside_another_until_a_later_one_is_faster(gpu):
    path, half, held = table_path(CUDA), torch.float16, Tile(16, 32, 256, 1, 4, 1)
    keep_table(path, [TABLE[1], TABLE[1]._replace(tile=held)])
    assert tiles_for(CUDA, half) == {(3072, 1024): {16: FEW}}
    assert tiles_for(CUDA, half, can_hold=True) == {(3072, 1024): {16: held}}
    keep_table(path, [TABLE[1]._replace(tile=MANY)])
    assert tiles_for(CUDA, half) == tiles_for(CUDA, half, can_hold=True) == {(3072, 1024): {16: MANY}}


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.json")), ids=lambda path: path.stem)
def test_what_is_shipped_is_for_all_products_of_the_models_it_names(path):
    """For float16, and at the least for batches of 64 and for single requests."""
    measured = measured_tiles(read_table(path), torch.float16)
    of_layers = {
        (N, K) for E in (768, 1024, 1280, 1600) for N, K in ((3 * E, E), (E, E), (4 * E, E), (E, 4 * E))
    }
    if path.stem == "nvidia_h100_80gb_hbm3":
        for config in (RANDOM_CONFIGS[name] for name in ("smollm2-135m", "qwen3-0.6b", "llama-3.2-1b")):
            E, D, width = config.hidden_size, config.head_dim, config.intermediate_size
            of_layers |= {((config.num_heads + 2 * config.num_kv_heads) * D, E), (E, config.num_heads * D)}
            of_layers |= {(2 * width, E), (E, width)}
    assert set(measured) == of_layers
    assert all({16, 64, 128} <= set(by_rows) for by_rows in measured.values())


def test_shipped_tables_are_named_after_gpus_and_come_with_the_package():
    assert {path.stem for path in SHIPPED.iterdir()} == set(
        map(paths.slug, ("NVIDIA H100 80GB HBM3", "NVIDIA H200"))
    )
    patterns = tomllib.loads((paths.ROOT / "pyproject.toml").read_text("utf-8"))
    patterns = patterns["tool"]["setuptools"]["package-data"]["labkit"]
    package = paths.ROOT / "labkit"
    assert {path for pattern in patterns for path in package.glob(pattern)} >= set(SHIPPED.iterdir())


def test_where_no_kernel_is_compiled_no_file_is_read(gpu, monkeypatch):
    keep_table(table_path(CUDA), TABLE)
    keep_table(shipped_path(CUDA), TABLE)
    assert tiles_for(torch.device("cpu"), torch.float16) == {}
    monkeypatch.setattr(tile_tables, "triton_status", lambda: TritonStatus("interpreter", "asked for"))
    assert tiles_for(CUDA, torch.float16) == {}


TIMED = {"N": 64, "K": 32, "dtype": "float16", "rows": 16, "tile": [16, 16, 16, 1, 4, 3], "us": 1.0}


def with_tile(**changed: object) -> dict:
    return {"tiles": [TIMED | changed]}


BROKEN = {
    "cut": (b'{"tiles": [', "is not valid JSON"),
    "nothing in it": ({}, "lacks tiles"),
    "no size": (with_tile(N="64"), "N must be a whole number, not '64'"),
    "no dtype": (with_tile(dtype="int8"), "dtype must be one of float16, "),
    "other rows": (with_tile(rows=17), "rows must be one of 1, 16, 64, 128, 256, not 17"),
    "a short tile": (with_tile(tile=[16, 16, 16]), "tile must be a list of 7"),
    "no power of 2": (with_tile(tile=[16, 24, 16, 1, 4, 3]), "tile.block_n is 24, expected a power of 2"),
    "a ring of float32": (
        with_tile(dtype="float32", tile=[64, 16, 64, 1, 4, 3, True]),
        "has a ring, which is for numbers of 16 bits, not float32",
    ),
    "no room": (with_tile(N=10**6, tile=[16, 16, 16, 2, 4, 3]), "has more parts than there is room for"),
}


@pytest.mark.parametrize(("content", "message"), BROKEN.values(), ids=BROKEN)
def test_a_damaged_file_is_named_with_what_is_wrong_and_what_to_do(gpu, content, message):
    path = table_path(CUDA)
    path.parent.mkdir(parents=True)
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(raw)
    for use in (lambda: tiles_for(CUDA, torch.float16), lambda: keep_table(path, TABLE)):
        with pytest.raises(RecordError) as error:
            use()
        said = str(error.value)
        assert message in said and "\n" not in said and len(said) < 1000
        assert f"Delete {path}" in said and "python -m labkit.bench tune" in said
    assert path.read_bytes() == raw and list(gpu.iterdir()) == [path]
