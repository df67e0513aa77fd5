"""What the kernels of a recorded step are for, told by their names."""

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

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
