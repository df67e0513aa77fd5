"""Recorded kernels: what those of a step are for, by their names, and how long some take by themselves."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd

from labkit.results.profiles import KernelTime, TracedStep

ATTENTION, LAYER_NORM = "attention", "LayerNorm"
FUSED_PRODUCTS = "fused products"  # labkit's own, a matrix product with what stands before or after it
LIBRARY_PRODUCTS = "library products"  # cuBLAS and its like
SPLIT_K_SUMS = "split-K sums"  # what adds up a product whose terms were split
EVERY_LAYER = "add, GELU and other small ones of the layers"
ENDS = "beginning and end of the step"
NUM_LAYERS = 12  # of GPT-2
# By what a name contains, in lower case; the first that fits.
NAMES = (
    (SPLIT_K_SUMS, ("splitkreduce", "splitk_reduce")),
    (ATTENTION, ("attn", "attention", "flash")),
    (FUSED_PRODUCTS, ("linear_kernel", "linear_residual")),
    (LIBRARY_PRODUCTS, ("gemm", "gemv", "nvjet", "cutlass", "xmma", "cublas")),
    (LAYER_NORM, ("layer_norm", "layernorm")),
)


def purpose_of(kernel: KernelTime) -> str:
    """What a kernel is for, told by its name.

    A kernel whose name says nothing belongs to the layers if it runs at least once per layer of GPT-2, and
    else to the ends of the step.
    """
    for purpose, parts in NAMES:
        if any(part in kernel.name.lower() for part in parts):
            return purpose
    return EVERY_LAYER if kernel.count >= NUM_LAYERS else ENDS


def qualified_name(kernel: str) -> str:
    """A kernel's name with its C++ namespaces, without return type, template and parameters, which can fill
    a page."""
    name = kernel.removeprefix("void ").replace("(anonymous namespace)", "anonymous")
    return re.split(r"[<(]", name)[0].strip()


N = TypeVar("N", int, float)


def sums(step: TracedStep, group_of: Mapping[str, str], value_of: Callable[[KernelTime], N]) -> dict[str, N]:
    """Sums over a step's kernels and copies: `value_of` each, by the group of its purpose."""
    totals: dict[str, N] = dict.fromkeys(group_of.values(), 0)
    for kernel in step.kernels:
        totals[group_of[purpose_of(kernel)]] += value_of(kernel)
    return totals


# --- on every rung --------------------------------------------------------------------------------------

PRODUCTS = "products"  # all matrix products together
GROUP_OF = {
    **dict.fromkeys((FUSED_PRODUCTS, LIBRARY_PRODUCTS), PRODUCTS),
    **{purpose: purpose for purpose in (SPLIT_K_SUMS, ATTENTION, LAYER_NORM, EVERY_LAYER, ENDS)},
}


def group_us(step: TracedStep) -> dict[str, float]:
    """Microseconds of a step's kernels and copies, by group."""
    return sums(step, GROUP_OF, lambda kernel: kernel.us)


def group_counts(step: TracedStep) -> dict[str, int]:
    """How many kernels of a step are in each group; copies do not count."""
    return sums(step, GROUP_OF, lambda kernel: 0 if kernel.is_copy else round(kernel.count))


def slowest_single(step: TracedStep) -> KernelTime:
    """The slowest kernel that runs once per step: GPT-2's output layer, whose matrix is the largest."""
    return max((k for k in step.kernels if round(k.count) == 1), key=lambda kernel: (kernel.us, kernel.name))


# --- where labkit's own kernels compute the layers' products (rung 09 and above) --------------------------

LAYERS, HEAD = "matrices of the layers", "matrix of the head"
REST, IDLE = "everything else", "nothing: the GPU waits"
PART_OF = {  # a library's matrix product is the head's
    ATTENTION: ATTENTION,
    FUSED_PRODUCTS: LAYERS,
    **dict.fromkeys((LIBRARY_PRODUCTS, SPLIT_K_SUMS), HEAD),
    **dict.fromkeys((LAYER_NORM, EVERY_LAYER, ENDS), REST),
}


def part_us(step: TracedStep) -> dict[str, float]:
    """Microseconds of a step by what they are spent on: each of the parts, and IDLE."""
    return sums(step, PART_OF, lambda kernel: kernel.us) | {IDLE: step.step_us - step.gpu_busy_us}


def part_counts(step: TracedStep) -> dict[str, float]:
    """How many kernels and copies of a step belong to each of the parts."""
    return sums(step, PART_OF, lambda kernel: kernel.count)


# --- by themselves: the K/V write in each of its forms, attention, and measured tiles -----------------------

ONE_PROGRAM, SPLIT = "one_program", "split"  # kernels of attention


def median_us(seconds: Sequence[float] | np.ndarray) -> float:
    """Microseconds, the median."""
    return 1e6 * float(np.median(seconds))


@dataclass(frozen=True)
class AppendTime:
    """Seconds that one layer's write of new keys and values takes for `batch_size` requests, by measurement.

    path: the form of the write, such as "full_batch".
    """

    path: str
    batch_size: int
    device_seconds: tuple[float, ...]  # on the GPU alone, launched by a replayed CUDA graph
    host_seconds: tuple[float, ...]  # to launch it from Python, checks included
    num_bytes: int  # new keys and values, read once and written once

    @property
    def device_us(self) -> float:
        """Microseconds of the write on the GPU, the median."""
        return median_us(self.device_seconds)

    @property
    def host_us(self) -> float:
        """Microseconds that the host takes to launch the write, the median."""
        return median_us(self.host_seconds)

    @property
    def rate(self) -> float:
        """Bytes moved per second."""
        return self.num_bytes / float(np.median(self.device_seconds))


@dataclass(frozen=True)
class AttentionTime:
    """Seconds that one layer's attention and K/V write take, by measurement, launched by a CUDA graph."""

    kernel: str  # ONE_PROGRAM or SPLIT
    batch_size: int
    context_len: int  # tokens in the cache, of each request
    splits: int  # programs per request and head
    seconds: tuple[float, ...]
    num_bytes: int  # of keys and values in the cache, read once

    @property
    def us(self) -> float:
        """Microseconds of the attention and the write, the median."""
        return median_us(self.seconds)

    @property
    def rate(self) -> float:
        """Bytes of keys and values read per second, at the median."""
        return self.num_bytes / float(np.median(self.seconds))


@dataclass(frozen=True)
class TunedTile:
    """The fastest tile of a product [rows, K] x [K, N].

    today: the tile that was taken before; if it was as fast, `tile` is the same. seconds: of a launch whose
    weights are not in the GPU's cache, by measurement. num_tried: tiles beside today's.
    """

    product: str
    N: int
    K: int
    rows: int
    today: tuple[int, ...]  # the fields of a `Tile`
    today_seconds: tuple[float, ...]
    tile: tuple[int, ...]
    seconds: tuple[float, ...]
    num_tried: int

    @property
    def us(self) -> float:
        """Microseconds of a launch with the fastest tile, the median."""
        return median_us(self.seconds)

    @property
    def gain(self) -> float:
        """Today's time over the found tile's; 1 where today's stays."""
        return median_us(self.today_seconds) / self.us


def tiles_table(samples: Sequence[TunedTile]) -> pd.DataFrame:
    """A row per product and number of rows: today's tile, the fastest, and how much faster it is."""
    rows = []
    for s in samples:
        times = (f"{median_us(seconds):.2f}" for seconds in (s.today_seconds, s.seconds))
        today, best = zip(map(in_words, (s.today, s.tile)), times, strict=True)
        rows.append((s.product, s.rows, *today, *best, f"×{s.gain:.2f}", s.num_tried))
    columns = ["product", "rows", "today", "µs", "best", "µs", "gain", "tried"]
    return pd.DataFrame(rows, columns=columns).set_index(columns[:2])


def in_words(tile: tuple[int, ...]) -> str:
    """A tile as "16 x 64 x 128, split 2, 4 warps, 5 stages"."""
    block_m, block_n, block_k, split_k, num_warps, num_stages, *ring = tile
    split = f", split {split_k}" if split_k > 1 else ""
    form = ", ring" if any(ring) else ""
    return f"{block_m} x {block_n} x {block_k}{split}, {num_warps} warps, {num_stages} stages{form}"
