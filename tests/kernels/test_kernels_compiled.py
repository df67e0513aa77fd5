"""Every kernel, compiled by Triton for GPUs from Ampere to Blackwell, none of which has to be there."""

import importlib
import itertools
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pkgutil import walk_packages

import pytest

pytest.importorskip("triton")

from compile_kernels import NATIVE, SHARED_MEMORY, TIGHTEST, VOCABULARY

from labkit import kernels
from labkit.kernels.tiles import TILES, Tile, staged_bytes, tile_with_room
from labkit.paths import ROOT

pytestmark = pytest.mark.slow

# Those whose products free a stage before the next one comes: not Hopper's wgmma, nor the tcgen05 of data
# center Blackwell.
WITHOUT_WGMMA = [arch for arch in SHARED_MEMORY if arch not in (90, 100)]
RINGS = {"_norm_ring_kernel", "_residual_ring_kernel"}  # Hopper's alone
EARLY = RINGS | {
    "_norm_linear_kernel",
    "_linear_residual_kernel",
    "_residual_sum_kernel",
    "_row_norm_kernel",
    "_residual_sum_of_peers_kernel",
    "_split_paged_attn_append_kernel",
    "_shared_paged_attn_append_kernel",
    "_grouped_paged_attn_append_kernel",
    "_kv_append_packed_kernel",
    "_packed_attention_kernel",
    "_best_of_pieces_kernel",
    "_choose_and_advance_kernel",
    "_draw_kernel",
}

# Bytes that a kernel may keep in memory on the native GPU, by Triton's version; none of the others any.
SPILLED_BY = {
    "3.8": {
        "_packed_attention_kernel": 8,
        "_paged_attn_decode_kernel": 8,
        "_split_paged_attn_append_kernel": 32,
        "_shared_paged_attn_append_kernel": 64,
    },
    "3.9": {"_split_paged_attn_append_kernel": 8},
}
# And where keys and values have 8 bits, of heads wider than 64. On an H200 what keeps nothing in memory, of
# fewer tokens or with more warps, gained with some loads and lost more with others
# (data/latency_variants_h200.json, "spills"). In float32, and on other GPUs, nobody has measured it.
SPILLED_IN_EIGHT_BITS = {
    "_packed_attention_kernel": 24,
    "_shared_paged_attn_append_kernel": 40,
    "_grouped_paged_attn_append_kernel": 8,
}
IN_EIGHT_BITS_ELSEWHERE = {
    "_packed_attention_kernel": 48,
    "_shared_paged_attn_append_kernel": 160,
    "_grouped_paged_attn_append_kernel": 144,
}
# By compute capability, on GPUs that nobody has measured, more than all others may keep.
ELSEWHERE = {(100, "_shared_paged_attn_append_kernel"): 56, (120, "_split_paged_attn_append_kernel"): 56}
SPILLED_AT_HOME = SPILLED_BY.get(".".join(version("triton").split(".")[:2]), {})


@pytest.fixture(scope="module", params=["quick", pytest.param("full", marks=pytest.mark.nightly)])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list]:
    """By compute capability, what each compiled kernel takes: see compile_kernels.py, which prints it."""
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
    taken = json.loads(answer.stdout)
    return {arch: [p for p in taken if p["arch"] == arch] for arch in sorted({p["arch"] for p in taken})}


def tile_in(program: dict) -> Tile:
    """The tile that a product was compiled with."""
    blocks = program["blocks"]
    return Tile(
        *(blocks[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")),
        blocks.get("SPLIT_K", 1),
        blocks["num_warps"],
        blocks.get("num_stages") or blocks["STAGES"],
        ring="STAGES" in blocks,
    )


def test_every_program_has_room_in_shared_memory(programs: dict[int, list]):
    for arch, compiled in programs.items():
        assert [p for p in compiled if p["shared"] > SHARED_MEMORY[arch]] == []


def may_spill(p: dict) -> int:
    """Bytes of a thread that such a program may keep in memory."""
    kernel, is_native = p["kernel"], p["arch"] == NATIVE and p["element_size"] == 2
    if "kept" in p["case"] and p["blocks"].get("BLOCK_D", 0) > 64:
        return (SPILLED_IN_EIGHT_BITS if is_native else IN_EIGHT_BITS_ELSEWHERE).get(kernel, 0)
    return SPILLED_AT_HOME.get(kernel, 0) if is_native else ELSEWHERE.get((p["arch"], kernel), 12 * 4)


def test_no_program_keeps_in_memory_what_belongs_in_registers(programs: dict[int, list]):
    """Attention's programs are made to fill the native GPU to the last of a thread's 255 registers, so
    elsewhere, and in float32, a few may be missing; what is badly chosen misses hundreds."""
    for p in itertools.chain(*programs.values()):
        assert p["spilled"] <= may_spill(p), p


def test_no_kernel_is_compiled_anew_for_another_number_of_rows_or_position(programs: dict[int, list]):
    """In the middle of serving. Sizes of a model and strides may be special: they stay."""
    for p in itertools.chain(*programs.values()):
        assert not {"M", "T", "n", "pos"} & set(p["special"]), p


def test_no_kernel_is_left_out(programs: dict[int, list], request: pytest.FixtureRequest):
    """Of those that there are, on every GPU that is compiled for, and in half precision with every tile."""
    is_full = request.node.callspec.params["programs"] == "full"
    assert set(programs) == (set(SHARED_MEMORY) if is_full else {NATIVE, TIGHTEST})
    modules = [
        importlib.import_module(each.name) for each in walk_packages(kernels.__path__, "labkit.kernels.")
    ]
    there_are = {name for module in modules for name in vars(module) if name.endswith("_kernel")}
    there_are.remove("_decode_layers_kernel")  # its weights are addresses: here are none
    assert len(there_are) == 29
    for arch, compiled in programs.items():
        assert {p["kernel"] for p in compiled} == there_are - (set() if arch == NATIVE else RINGS)
        tiles = {tile_in(p) for p in compiled if "BLOCK_K" in p["blocks"]}
        assert {
            tile_with_room(tile, 2, SHARED_MEMORY[arch]) for rows in TILES.values() for _, tile in rows
        } <= tiles


def test_the_stages_of_a_tile_take_what_tiles_are_cut_by(programs: dict[int, list]):
    """And if there are fewer pieces of inputs than stages, less. The head of a row adds up over its threads
    there instead."""
    for arch in set(WITHOUT_WGMMA) & set(programs):
        checked = 0
        for p in programs[arch]:
            if "BLOCK_K" in p["blocks"] and f"(1, {VOCABULARY}, " not in p["case"]:
                staged = staged_bytes(tile_in(p), p["element_size"])
                assert p["shared"] <= staged, p
                if p["inputs"] >= 768:
                    assert p["shared"] == staged, p
                    checked += 1
        assert checked >= 2


def test_on_hopper_all_kernels_of_a_step_but_the_first_begin_early(programs: dict[int, list]):
    """What attention reads before it waits may have been written by what came before the first kernel."""
    fused = {p["kernel"]: p["early"] for p in programs[NATIVE] if p["blocks"].get("EARLY")}
    assert fused == dict.fromkeys(EARLY, True) | {"_embed_slots_kernel": False}
    older = itertools.chain(*(compiled for arch, compiled in programs.items() if arch < 90))
    assert not any(p["blocks"].get("EARLY") or p["early"] for p in older)


def test_what_is_prefetched_lies_in_the_threads_as_held_first_takes_it(programs: dict[int, list]):
    """Number i in thread i, and where there are more threads than numbers again in thread i + COUNT: else
    none of them would ask, or several."""
    early = [p for p in itertools.chain(*programs.values()) if p["blocks"].get("EARLY")]
    prefetching = [p for p in early if p["blocks"].get("PREFETCH")]
    assert len(prefetching) >= 12
    for p in prefetching:
        warps = p["blocks"]["num_warps"]
        threads = f"sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [{warps}], order = [0]"
        assert p["prefetch_layouts"] == [f"#ttg.blocked<{{{threads}}}>"]


def test_a_ring_is_filled_with_weights_before_the_wait_and_with_rows_behind_it(programs: dict[int, list]):
    rings = [p for p in programs[NATIVE] if p["kernel"] in RINGS]
    assert len(rings) >= 40
    for p in rings:
        tile, (before, behind) = tile_in(p), p["boxes_asked_for"]
        of_box = max(1, tile.block_k // 64 // tile.num_warps)  # a warp asks for 64 columns
        assert before == tile.num_stages * of_box and behind >= before, p


def test_what_is_held_is_loaded_before_the_wait(programs: dict[int, list]):
    """All of a program's weights, in each thread's share."""
    held = [p for p in programs[NATIVE] if p["blocks"].get("HELD")]
    assert len(held) >= 20
    for p in held:
        tile = tile_in(p)
        columns = -(-p["inputs"] // tile.split_k)
        least = tile.block_n * columns * p["element_size"] // (32 * tile.num_warps)
        assert p["bytes_before_wait"] >= least, p
