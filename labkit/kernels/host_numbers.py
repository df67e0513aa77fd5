"""A few numbers between the host's pinned memory and a GPU, by a kernel.

A copy takes a microsecond, but it is not the kernels' part of the GPU that does it: with one between two
CUDA graphs, the second begins some 12 us after the first has ended, on an H200, and some 4 us with a kernel
there that reads or writes the pinned memory by itself (data/latency_variants_h200.json, part `between`).
"""

import torch
from torch import Tensor

from labkit.kernels.checks import check_range, check_tensor
from labkit.kernels.triton_runtime import check_launchable, tl, triton

NUMBERS_PER_PROGRAM = 1024


# --- numbers there and back ------------------------------------------------------------------------


def copy_numbers_triton(source: Tensor, target: Tensor) -> None:
    """Start a copy of int64 [n] to int64 [n], one of them in pinned memory where the other is on a GPU, in a
    kernel of the current stream. Its plain twin is `target.copy_(source, non_blocking=True)`.

    Raises ValueError for arguments that do not fit, and TritonUnavailableError where no kernel runs.
    """
    check_tensor("source", source, shape=("n",), dtype=torch.int64, last_stride_is_1=True)
    check_tensor("target", target, shape=source.shape, dtype=torch.int64, last_stride_is_1=True)
    check_launchable(source.device if source.is_cuda else target.device)
    check_reachable("source", source, target)
    check_reachable("target", target, source)
    if n := len(source):
        grid = (-(-n // NUMBERS_PER_PROGRAM),)
        _copy_numbers_kernel[grid](source, target, n, BLOCK=NUMBERS_PER_PROGRAM)


@triton.jit(do_not_specialize=["n"])
def _copy_numbers_kernel(source_ptr, target_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target_ptr + i, tl.load(source_ptr + i, mask=i < n), mask=i < n)


# --- words to their places on the device -----------------------------------------------------------


def scatter_words_triton(packed: Tensor, words: Tensor) -> None:
    """Start `words[places] = numbers`, in a kernel of the current stream that reads the host's memory.

    packed: int64, in pinned memory if the words are on a GPU: n places, none twice, and then n numbers of
    int32, two in each. words: int32 [N]. Its plain twin is `scatter_words_plain`, beside `PinnedStaging`.
    Raises ValueError for arguments that do not fit, and TritonUnavailableError where no kernel runs.
    """
    check_tensor("packed", packed, shape=("n",), dtype=torch.int64, last_stride_is_1=True)
    check_tensor("words", words, shape=("N",), dtype=torch.int32, last_stride_is_1=True)
    check_launchable(words.device)
    check_reachable("packed", packed, words)
    n = len(packed) * 2 // 3
    check_tensor("packed", packed, shape=(n + -(-n // 2),))
    check_range("packed", packed[:n], len(words))
    if n:
        grid = (-(-n // NUMBERS_PER_PROGRAM),)
        _words_to_places_kernel[grid](packed, words, n, BLOCK=NUMBERS_PER_PROGRAM)


@triton.jit(do_not_specialize=["n"])
def _words_to_places_kernel(packed_ptr, words_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    places = tl.load(packed_ptr + i, mask=i < n)
    numbers_ptr = (packed_ptr + n).to(tl.pointer_type(tl.int32))
    tl.store(words_ptr + places, tl.load(numbers_ptr + i, mask=i < n), mask=i < n)


def check_reachable(name: str, on_host: Tensor, other: Tensor) -> None:
    """Raises ValueError unless a kernel on the other tensor's device can reach this one, too."""
    if other.is_cuda and not (on_host.is_cuda or on_host.is_pinned()):
        raise ValueError(f"{name} is in memory that a GPU cannot reach: make it with pin_memory=True")
