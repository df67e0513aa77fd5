"""Compile every kernel for GPUs that need not be there, and print what each program takes of them, as JSON.

    python tests/support/compile_kernels.py quick|full

A process of its own, for where there is no GPU labkit turns Triton's interpreter on, and kernels that are
imported so cannot be compiled. The wrappers are called as the engine calls them, with tensors that have no
numbers, and Triton stops before the launch: so each kernel is compiled with the constants and the options
that it has in an engine.
"""

import itertools
import json
import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch._subclasses import FakeTensorMode
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction, MockTensor

with patch.object(torch.cuda, "is_available", lambda: True):
    from labkit.kernels import triton_runtime
from kernel_calls import (
    FEW,
    append,
    attention,
    drafts,
    draw,
    ends,
    gated,
    linear_residual,
    norm_linear,
    numbers,
    packed,
    verified,
)

from labkit.kernels import split_attention, tile_tables, tiles

# Bytes of shared memory that a program can have ("opt-in"), by compute capability: CUDA C++ Programming
# Guide, table "Technical Specifications per Compute Capability". (A multiprocessor has 1 KiB more.)
SHARED_MEMORY = {
    80: 163 * 1024,
    86: 99 * 1024,
    89: 99 * 1024,
    90: 227 * 1024,
    100: 227 * 1024,
    120: 99 * 1024,
}
NATIVE, TIGHTEST = 90, 86  # TILES were measured on the one; on the other they have the least room

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
HEAD_SIZES = (64, 80, 128)
BLOCK_SIZES = (16, 64)
VOCABULARY = 128256
# Outputs and inputs of products that are not in the table: of GPT-2 XL's layers and of the tiny model's.
OTHER_PRODUCTS = [(N, K) for E in (1600, 64) for N, K in ((3 * E, E), (4 * E, E), (E, E), (E, 4 * E))]

Case = partial[None]


def products(dtype: torch.dtype, sizes: list, rows: list[int] | None = None) -> Iterator[Case]:
    """Of each size, for each number of rows, or for each that has a tile in the table."""
    for N, K in sizes:
        function = linear_residual if N <= K else norm_linear
        for M in rows or [most for most, _ in tiles.TILES[N, K]]:
            yield partial(function, M, N, K, dtype)


def prefetching(dtype: torch.dtype) -> Iterator[Case]:
    """The products that ask for their weights while they wait."""
    for rows, (N, K) in itertools.product((16, 64, 128), tiles.TILES):
        yield partial(linear_residual if N <= K else norm_linear, rows, N, K, dtype, True)


def held() -> Iterator[Case]:
    """The products that have weights before they wait, by the tiles that are shipped; and a ring's gate."""
    yield partial(gated, 64, 3072, 576, torch.bfloat16, tiles.Tile(64, 32, 128, 1, 4, 5, ring=True))
    for path in sorted(tile_tables.SHIPPED.iterdir()):
        for N, K, _, rows, tile, _ in tile_tables.read_table(path):
            if tiles.is_held(tile):
                function = linear_residual if N <= K else norm_linear
                yield partial(function, rows, N, K, torch.float16, False, tile)


def heads_of_a_row(dtype: torch.dtype) -> Iterator[Case]:
    """The head of a single row, held and not."""
    for K in (2048, 4096):
        yield partial(norm_linear, 1, VOCABULARY, K, dtype, False, tiles.head_tile(K, dtype.itemsize))


def attentions(D: int, dtype: torch.dtype, block_sizes: tuple[int, ...] = (64,)) -> Iterator[Case]:
    for block_size in block_sizes:  # which are constants of these kernels only
        for form in ("paged", "append"):
            yield partial(attention, form, D, block_size, dtype)
    most = split_attention.MAX_SPLITS
    for B, splits in ((8, 1), (8, most), (128, 1)):  # the last are more programs than run at once
        yield partial(attention, "split", D, 64, dtype, B, splits)
    for B in (8, 128):
        yield partial(attention, "shares", D, 64, dtype, B)


def packings(D: int, dtype: torch.dtype, block_sizes: tuple[int, ...] = (64,)) -> Iterator[Case]:
    """A tile of each kind."""
    for (T, P), block_size in itertools.product(((256, 64), (512, 1), (2048, 4)), block_sizes):
        yield partial(packed, D, dtype, T, P, block_size)


def groups(D: int, dtype: torch.dtype) -> Iterator[Case]:
    yield partial(attention, "paged", D, 64, dtype, G=FEW)
    for B, splits in ((8, split_attention.MAX_SPLITS), (128, 1)):
        yield partial(attention, "split", D, 64, dtype, B, splits, G=FEW)
    yield partial(attention, "shares", D, 64, dtype, 64, G=FEW)
    for T, P in ((256, 64), (2048, 4)):
        yield partial(packed, D, dtype, T, P, G=FEW)


def in_eight_bits(arch: int, D: int, dtype: torch.dtype) -> Iterator[Case]:
    """What rung 16 launches, with each type that the GPU has."""
    for kept in (torch.uint8, torch.float8_e4m3fn) if arch >= 89 else (torch.uint8,):
        for B in (8, 128):
            yield partial(attention, "shares", D, 64, dtype, B, kept=kept)
        for B in (8, 64):
            yield partial(attention, "shares", D, 64, dtype, B, kept=kept, G=FEW)
        for T, P in ((256, 64), (512, 1), (2048, 4)):
            yield partial(packed, D, dtype, T, P, kept=kept)
            yield partial(packed, D, dtype, T, P, kept=kept, G=FEW)


def appends(D: int, dtype: torch.dtype) -> Iterator[Case]:
    for form in ("indexed", "full batch", "identity pos"):
        yield partial(append, form, D, dtype)


def full(arch: int) -> Iterator[Case]:
    """Every kernel, in every precision, with every tile and head size."""
    if arch == NATIVE:
        yield from held()
    yield partial(drafts)
    yield partial(numbers)
    yield partial(verified)
    for dtype in DTYPES:
        yield partial(ends, dtype)
        yield partial(draw, dtype)
        yield from heads_of_a_row(dtype)
        yield from products(dtype, list(tiles.TILES))
        yield from prefetching(dtype)
        yield from products(dtype, OTHER_PRODUCTS, rows=[1, 256])
        for M, (N, K) in itertools.product((16, 64, 256), ((3072, 576), (16384, 2048))):
            yield partial(gated, M, N, K, dtype)
        for D in HEAD_SIZES:
            yield from groups(D, dtype)
            yield from in_eight_bits(arch, D, dtype)
            yield from attentions(D, dtype, BLOCK_SIZES)
            yield from packings(D, dtype, BLOCK_SIZES)
            yield from appends(D, dtype)


def quick(arch: int) -> Iterator[Case]:
    """Every kernel with every tile, on the native GPU in half precision, and on the tightest one with the
    largest heads; elsewhere nothing."""
    if arch not in (NATIVE, TIGHTEST):
        return
    yield partial(drafts)
    yield partial(numbers)
    yield partial(verified)
    yield partial(ends, torch.float16)
    yield partial(draw, torch.float16)
    yield from products(torch.float16, list(tiles.TILES))
    for dtype in (torch.bfloat16, torch.float32):
        yield from products(dtype, [(2304, 768), (768, 3072)], rows=[16])
    yield partial(gated, 16, 16384, 2048, torch.float16)
    heads = [(128, torch.float32)]
    if arch == NATIVE:
        yield from prefetching(torch.float16)
        yield from held()
        yield from heads_of_a_row(torch.bfloat16)
        # Each size has one of the two types, and each kernel has both.
        cases = list(in_eight_bits(arch, 64, torch.float16))
        pairs = zip(cases[: len(cases) // 2], cases[len(cases) // 2 :], strict=True)
        yield from (pair[(i + i // 2) % 2] for i, pair in enumerate(pairs))
        heads = [(64, torch.float16), (128, torch.bfloat16)]
    for D, dtype in heads:
        yield from groups(D, dtype)
        yield from attentions(D, dtype)
        yield from packings(D, dtype)
    for D, dtype in zip(HEAD_SIZES, DTYPES, strict=True):
        yield from appends(D, dtype)


# --- compiling, not launching ------------------------------------------------------------------------


class TargetDriver:
    """A GPU for which Triton compiles, and on which nothing runs."""

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_current_device(self) -> int:
        return self.arch  # kernels are kept by device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)


def spilled_bytes(compiled: triton.compiler.CompiledKernel) -> int:
    """What a thread keeps in memory, because it has no registers for it."""
    (cubin,) = (path for name, path in compiled.metadata_group.items() if name.endswith(".cubin"))
    command = [knobs.nvidia.cuobjdump.path, "-res-usage", cubin]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = dict(re.findall(r"\b(STACK|LOCAL):(\d+)", answer))
    return int(used["STACK"]) + int(used["LOCAL"])


def prefetch_layouts(ttgir: str) -> list[str]:
    """How the numbers that a kernel's prefetches are made of lie in its threads."""
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", ttgir, re.MULTILINE))
    prefetches = [line for line in ttgir.splitlines() if "cp.async.bulk.prefetch" in line]
    return sorted({layouts[name] for line in prefetches for name in re.findall(r"xi\d+, (#\w+)>", line)})


def bytes_before_wait(ptx: str) -> int:
    """What a thread loads from memory before it waits for the kernel in front; 0 where it does not wait."""
    before, waits, _ = ptx.partition("griddepcontrol.wait")
    loads = re.findall(r"ld\.global\S*?(?:\.v(\d))?\.[bu](\d+)\b", before) if waits else []
    return sum(int(count or 1) * int(bits) // 8 for count, bits in loads)


def boxes_asked_for(ptx: str) -> list[int]:
    """How often the TMA is asked for a box, before the wait for the kernel in front and behind it."""
    return [part.count("cp.async.bulk.tensor.2d.shared") for part in ptx.split("griddepcontrol.wait")]


def special_arguments(compiled: triton.compiler.CompiledKernel) -> list[str]:
    """The arguments for whose values, a multiple of 16 or 1, it was compiled: others need another kernel."""
    names = list(compiled.src.signature)
    return sorted({names[place] for place, *_ in [*compiled.src.attrs, *compiled.src.constants]})


def compile_case(arch: int, case: Case) -> list[dict]:
    """What its kernels take of such a GPU."""
    taken, run = [], JITFunction.run

    def compile_only(self: JITFunction, *args: Any, grid: object, warmup: bool, **options: object) -> None:
        dtypes = [MockTensor(a.dtype) if isinstance(a, torch.Tensor) else a for a in args]
        compiled = run(self, *dtypes, grid=grid, warmup=True, **options)
        first = getattr(args[0], "base", args[0])  # of a product, its inputs
        taken.append(
            {
                "arch": arch,
                "kernel": self.__name__,
                "case": f"{case.args} {case.keywords or ''}",
                "blocks": {k: v for k, v in options.items() if k.isupper() or k.startswith("num_")},
                "inputs": first.shape[-1],
                "element_size": first.element_size(),
                "shared": compiled.metadata.shared,
                "spilled": spilled_bytes(compiled),
                "early": compiled.metadata.launch_pdl,
                "prefetch_layouts": prefetch_layouts(compiled.asm["ttgir"]),
                "bytes_before_wait": bytes_before_wait(compiled.asm["ptx"]),
                "boxes_asked_for": boxes_asked_for(compiled.asm["ptx"]),
                "special": special_arguments(compiled),
            }
        )

    driver.set_active(TargetDriver(arch))
    triton_runtime.early_launch.cache_clear()
    triton_runtime.shared_memory_of.cache_clear()
    properties = SimpleNamespace(shared_memory_per_block_optin=SHARED_MEMORY[arch])
    with (
        FakeTensorMode(),
        patch.object(torch.Tensor, "data_ptr", lambda tensor: 0),
        patch.object(JITFunction, "run", compile_only),
        patch.object(torch.cuda, "get_device_capability", lambda device=None: divmod(arch, 10)),
        patch.object(torch.cuda, "get_device_properties", lambda device=None: properties),
    ):
        case()
    return taken


def main() -> None:
    chosen = {"quick": quick, "full": full}[sys.argv[1]]
    cases = [(arch, case) for arch in SHARED_MEMORY for case in chosen(arch)]
    with multiprocessing.get_context("fork").Pool(len(os.sched_getaffinity(0))) as pool:
        taken = [each for made in pool.starmap(compile_case, cases, chunksize=1) for each in made]
    json.dump(taken, sys.stdout)


if __name__ == "__main__":
    main()
