"""Every kernel, compiled by Triton for GPUs from Ampere to Blackwell, none of which has to be there."""

import json
import os
import subprocess
import sys
from importlib.metadata import version

import pytest
from packaging.version import Version

pytest.importorskip("triton")

from compile_kernels import MODULES, NATIVE, SHARED_MEMORY, TIGHTEST

from labkit.kernels.tiles import TILES, Tile, staged_bytes, tile_with_room
from labkit.paths import ROOT

pytestmark = pytest.mark.slow

# Those whose products free a stage before the next one comes: not Hopper's wgmma, nor the tcgen05 of data
# center Blackwell.
WITHOUT_WGMMA = [arch for arch in SHARED_MEMORY if arch not in (90, 100)]
EARLY = {
    "_norm_linear_kernel",
    "_linear_residual_kernel",
    "_split_paged_attn_append_kernel",
    "_shared_paged_attn_append_kernel",
    "_kv_append_packed_kernel",
    "_packed_attention_kernel",
    "_best_of_pieces_kernel",
    "_choose_and_advance_kernel",
    "_draw_kernel",
}

# Bytes: from 3.9 on, Triton needs two registers more for a head of 80 in one form of split attention.
SPILLED_AT_HOME = 8 if Version(version("triton")) >= Version("3.9") else 0

each_arch = pytest.mark.parametrize("arch", SHARED_MEMORY)


@pytest.fixture(scope="module", params=["quick", pytest.param("full", marks=pytest.mark.full_compile)])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What each compiled kernel takes: see compile_kernels.py, which prints it."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    kept = getattr(request.config, "cache", None)  # what has not changed is not compiled again
    cache = str(kept.mkdir("triton") if kept else tmp_path_factory.mktemp("triton"))
    answer = subprocess.run(
        [sys.executable, ROOT / "tests/support/compile_kernels.py", request.param],
        env=environment | {"CUDA_VISIBLE_DEVICES": "", "TRITON_CACHE_DIR": cache, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def tile_in(program: dict) -> Tile:
    """The tile that a product was compiled with."""
    blocks = program["blocks"]
    return Tile(
        *(blocks[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")),
        blocks.get("SPLIT_K", 1),
        blocks["num_warps"],
        blocks["num_stages"],
    )


@each_arch
def test_every_program_has_room_in_shared_memory(programs: list[dict], arch: int):
    too_large = [p for p in programs if p["arch"] == arch and p["shared"] > SHARED_MEMORY[arch]]
    assert too_large == []


@each_arch
def test_no_program_keeps_in_memory_what_belongs_in_registers(programs: list[dict], arch: int):
    """Attention's programs are made to fill the native GPU to the last of a thread's 255 registers, so
    elsewhere, and in float32, a few may be missing; what is badly chosen misses hundreds."""
    for p in programs:
        if p["arch"] == arch:
            is_native = arch == NATIVE and p["element_size"] == 2
            assert p["spilled"] <= (SPILLED_AT_HOME if is_native else 12 * 4), p  # bytes


@each_arch
def test_no_kernel_is_left_out(programs: list[dict], arch: int):
    """Of those that there are, on the native and the tightest GPU, and in half precision with every tile."""
    compiled = [p for p in programs if p["arch"] == arch]
    if arch in (NATIVE, TIGHTEST):
        there_are = {name for module in MODULES for name in vars(module) if name.endswith("_kernel")}
        assert len(there_are) == 16
        assert {p["kernel"] for p in compiled} == there_are
        tiles = {tile_in(p) for p in compiled if "BLOCK_K" in p["blocks"]}
        assert {
            tile_with_room(tile, 2, SHARED_MEMORY[arch]) for rows in TILES.values() for _, tile in rows
        } <= tiles
    assert {"_norm_linear_kernel", "_linear_residual_kernel"} <= {p["kernel"] for p in compiled}


@pytest.mark.parametrize("arch", WITHOUT_WGMMA)
def test_the_stages_of_a_tile_take_what_tiles_are_cut_by(programs: list[dict], arch: int):
    """And if there are fewer pieces of inputs than stages, less."""
    checked = 0
    for p in programs:
        if p["arch"] == arch and "BLOCK_K" in p["blocks"]:
            staged = staged_bytes(tile_in(p), p["element_size"])
            assert p["shared"] <= staged, p
            if p["inputs"] >= 768:
                assert p["shared"] == staged, p
                checked += 1
    assert checked >= 2


def test_on_hopper_all_kernels_of_a_step_but_the_first_begin_early(programs: list[dict]):
    """What attention reads before it waits may have been written by what came before the first kernel."""
    fused = {p["kernel"]: p["early"] for p in programs if p["arch"] == NATIVE and p["blocks"].get("EARLY")}
    assert fused == dict.fromkeys(EARLY, True) | {"_embed_slots_kernel": False}
    assert not any(p["blocks"].get("EARLY") or p["early"] for p in programs if p["arch"] < 90)


def test_what_is_prefetched_lies_in_the_threads_as_held_first_takes_it(programs: list[dict]):
    """Number i in thread i, and where there are more threads than numbers again in thread i + COUNT: else
    none of them would ask, or several."""
    prefetching = [p for p in programs if p["blocks"].get("PREFETCH") and p["blocks"].get("EARLY")]
    assert len(prefetching) >= 12
    for p in prefetching:
        warps = p["blocks"]["num_warps"]
        threads = f"sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [{warps}], order = [0]"
        assert p["prefetch_layouts"] == [f"#ttg.blocked<{{{threads}}}>"]
