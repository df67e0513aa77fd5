"""A few numbers between the host's pinned memory and a GPU, by a kernel.

A copy takes a microsecond, but it is not the kernels' part of the GPU that does it: with one between two
CUDA graphs, the second begins some 12 us after the first has ended, on an H200, and some 4 us with a kernel
there that reads or writes the pinned memory by itself (data/latency_variants_h200.json, part `between`).
"""

import torch
from torch import Tensor

from labkit.kernels.checks import check_tensor
from labkit.kernels.triton_runtime import check_launchable, tl, triton

NUMBERS_PER_PROGRAM = 1024


def copy_numbers_triton(source: Tensor, target: Tensor) -> None:
    """Start a copy of int64 [n] to int64 [n], one of them in pinned memory where the other is on a GPU, in a
    kernel of the current stream. Its plain twin is `target.copy_(source, non_blocking=True)`.

    Raises ValueError for arguments that do not fit, and TritonUnavailableError where no kernel runs.
    """
    check_copy_numbers(source, target)
    check_launchable(source.device if source.is_cuda else target.device)
    kernel = _numbers_to_device_kernel if target.is_cuda else _numbers_to_host_kernel
    if n := len(source):
        kernel[(triton.cdiv(n, NUMBERS_PER_PROGRAM),)](source, target, n, BLOCK=NUMBERS_PER_PROGRAM)


@triton.jit
def _copy_block(source_ptr, target_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target_ptr + i, tl.load(source_ptr + i, mask=i < n), mask=i < n)


# Two names, so that a trace says which way numbers went.


@triton.jit(do_not_specialize=["n"])
def _numbers_to_device_kernel(source_ptr, target_ptr, n, BLOCK: tl.constexpr):
    _copy_block(source_ptr, target_ptr, n, BLOCK)


@triton.jit(do_not_specialize=["n"])
def _numbers_to_host_kernel(source_ptr, target_ptr, n, BLOCK: tl.constexpr):
    _copy_block(source_ptr, target_ptr, n, BLOCK)


def check_copy_numbers(source: Tensor, target: Tensor) -> None:
    """Raises ValueError unless both are int64 [n], contiguous, and what is on no GPU is pinned if the other
    one is on a GPU."""
    check_tensor("source", source, shape=("n",), dtype=torch.int64, last_stride_is_1=True)
    check_tensor("target", target, shape=source.shape, dtype=torch.int64, last_stride_is_1=True)
    if source.is_cuda != target.is_cuda and not (source if target.is_cuda else target).is_pinned():
        name = "source" if target.is_cuda else "target"
        raise ValueError(f"{name} is in memory that a GPU cannot reach: make it with pin_memory=True")
