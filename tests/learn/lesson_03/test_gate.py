"""Lesson 03's gate: kernels for the full batch pass, and wrong ones are refused by what they break."""

import pytest
import torch
from gate_tests import gate_tests

from labkit.kernels.triton_runtime import tl, triton, triton_status

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(triton_status().mode == "off", reason=triton_status().reason),
]


# --- kernels: a program per request and head, of which each option of `wrong` breaks one contract ---------


@triton.jit
def full_batch_kernel(
    cache_ptr, new_ptr, block_ptr, pos, stride_n, stride_h, stride_t, new_stride_b, new_stride_h, D,
    BLOCK_D: tl.constexpr,
    HAS_MASK: tl.constexpr = True, LOADS_ALL: tl.constexpr = False, IN_32_BITS: tl.constexpr = False,
):  # fmt: skip
    b = tl.program_id(0)
    h = tl.program_id(1)
    d = tl.arange(0, BLOCK_D)
    block = tl.load(block_ptr + b)
    if not IN_32_BITS:
        block = block.to(tl.int64)
    place = block * stride_n + h * stride_h + pos * stride_t + d
    if HAS_MASK:
        is_loaded = (d < D) | LOADS_ALL
        number = tl.load(new_ptr + b * new_stride_b + h * new_stride_h + d, mask=is_loaded)
        tl.store(cache_ptr + place, number, mask=d < D)
    else:
        number = tl.load(new_ptr + b * new_stride_b + h * new_stride_h + d)
        tl.store(cache_ptr + place, number)


class Kernels:
    """The whole batch at one position by a kernel, one launch for keys and one for values; all else by
    indexed assignment."""

    def __init__(self, device):
        self.device = device

    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos):
        if self.is_full_batch(batch_idx, pos, len(key_new)):
            block_idx = torch.tensor(block_idx, dtype=torch.int32, device=self.device)
            self.launch(k_cache_layer, key_new, block_idx, self.slot(pos))
            self.launch(v_cache_layer, value_new, block_idx, self.slot(pos))
            return "full_batch"
        self.assign(k_cache_layer, key_new, batch_idx, block_idx, pos)
        self.assign(v_cache_layer, value_new, batch_idx, block_idx, pos)
        return "generic"

    def is_full_batch(self, batch_idx, pos, batch_size):
        return len(batch_idx) == batch_size and len(set(pos)) == 1

    def slot(self, pos):
        return pos[0]

    def launch(self, cache, new, block_idx, pos):
        self.kernel(cache, new, new.stride(), block_idx, pos)

    def kernel(self, cache, new, new_strides, block_idx, pos, cache_strides=None, **wrong):
        D = new.shape[2]
        strides = *(cache_strides or cache.stride()[:3]), *new_strides[:2]
        full_batch_kernel[self.grid(new)](
            cache, new, block_idx, pos, *strides, D, BLOCK_D=triton.next_power_of_2(D), **wrong
        )

    def grid(self, new):
        return tuple(new.shape[:2])

    def assign(self, cache, new, batch_idx, block_idx, pos):
        cache[list(block_idx), :, list(pos)] = new[list(batch_idx)]


class WithoutMask(Kernels):
    def launch(self, cache, new, block_idx, pos):
        self.kernel(cache, new, new.stride(), block_idx, pos, HAS_MASK=False)


class LoadsAllLanes(Kernels):
    """A mask for the store alone."""

    def launch(self, cache, new, block_idx, pos):
        self.kernel(cache, new, new.stride(), block_idx, pos, LOADS_ALL=True)


class TwiceByTheGrid(Kernels):
    """A third axis of the grid, which the kernel does not know: each number is written twice."""

    def grid(self, new):
        return *new.shape[:2], 2


class In32Bits(Kernels):
    def launch(self, cache, new, block_idx, pos):
        self.kernel(cache, new, new.stride(), block_idx, pos, IN_32_BITS=True)


class KeysSideBySide(Kernels):
    """Takes keys for one piece of memory, where they are views of what the model made."""

    def launch(self, cache, new, block_idx, pos):
        _, H, D = new.shape
        self.kernel(cache, new, (H * D, D), block_idx, pos)


class WithoutGrid(Kernels):
    def launch(self, cache, new, block_idx, pos):
        strides = *cache.stride()[:3], *new.stride()[:2]
        full_batch_kernel(cache, new, block_idx, pos, *strides, new.shape[2], BLOCK_D=16)


class PrefixTakenForAll(Kernels):
    """Looks at the requests that are written, and not at how many the batch has."""

    def is_full_batch(self, batch_idx, pos, batch_size):
        return list(batch_idx) == list(range(len(batch_idx))) and len(set(pos)) == 1


class SizeForStride(Kernels):
    """Takes the slots of a head for neighbours in memory."""

    def launch(self, cache, new, block_idx, pos):
        n, h, _, _ = cache.stride()
        self.kernel(cache, new, new.stride(), block_idx, pos, cache_strides=(n, h, cache.shape[3]))


class StrideOfALayer(Kernels):
    """Takes the first stride of all layers' keys for that of a block."""

    def launch(self, cache, new, block_idx, pos):
        n, h, t, _ = cache.stride()
        self.kernel(cache, new, new.stride(), block_idx, pos, cache_strides=(len(cache) * n, h, t))


class IndicesForAll(Kernels):
    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos):
        torch.tensor(list(pos), dtype=torch.int32)
        return super().write(k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos)


IN_ITS_SLOT = "each named request's key is in its slot: with requests "
NO_OTHER = "only the named slots are written: with requests "
WRONG = {
    WithoutMask: NO_OTHER
    + r"\[0, 1, 2\] of a batch of 3 \(3 heads of 20 values\) .* expected no change. Past a head's",
    LoadsAllLanes: r"a kernel touches the elements of its tensors and nothing else: .*3 heads of 20.* "
    r"program \(0, 2\) of full_batch_kernel reads 60 numbers from the first of new_ptr, \[3, 3, 20\]",
    StrideOfALayer: r"a kernel touches the elements of its tensors and nothing else: .* program \(0, 0\) of "
    r"full_batch_kernel writes 3,?\d* numbers from the first of cache_ptr, .* the grid is \(3, 2\)",
    TwiceByTheGrid: r"no two programs write one number: .*programs \(0, 0, 0\) and \(0, 0, 1\) of full_batch",
    PrefixTakenForAll: r"a kernel touches the elements of its tensors and nothing else: .* \[0, 1\] of a "
    r"batch of 3 .* block_ptr, \[2\], .* The path is wrong, too: a part of the batch is written, and it",
    SizeForStride: r"\[0, 1\] of a batch of 2 .* heads lie side by side: take every stride from the tensor\.",
    In32Bits: r"a place in a large pool is found: .* of blocks \[262144\], .* is in block 0\. .* 64 bits",
    WithoutGrid: r"every write can be made: with .* in square brackets: `kernel\[grid\]",
    KeysSideBySide: IN_ITS_SLOT + r"\[0, 1, 2\] .* the key of request 1 in .* strides of their own",
    IndicesForAll: r"no index is sent that the path does not need: .* 2 index tensors were made, .* most 1",
}


class Plain:
    """Indexed assignment alone, with the batch and the position left out where they can be."""

    def __init__(self, device):
        self.device = device

    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos):
        is_full_batch = len(batch_idx) == len(key_new) and min(pos) == max(pos)
        rows, slots = (slice(None), pos[0]) if is_full_batch else (list(batch_idx), pos)
        block_idx = torch.tensor(block_idx, device=self.device)
        k_cache_layer[block_idx, :, slots] = key_new[rows]
        v_cache_layer[block_idx, :, slots] = value_new[rows]
        return "full_batch" if is_full_batch else "generic"


RIGHT = (Kernels, Plain)


test_wrong_parts, test_right_parts = gate_tests("03", "kv_write", WRONG, RIGHT)
