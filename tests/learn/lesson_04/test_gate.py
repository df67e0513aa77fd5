"""Lesson 04's gate: identity-pos writes pass, and plausible wrong ones are refused by what they break."""

import pytest
import torch
from gate_tests import gate_tests
from triton_marks import needs_triton

from labkit.kernels import kv_append_identity_pos_plain, kv_append_plain
from labkit.kernels.triton_runtime import tl, triton
from labkit.kvcache import FullBatchWrite
from labkit.learn.lesson_03.offsets import sizes
from labkit.learn.lesson_04.forms import write_identity_pos

pytestmark = [pytest.mark.slow, needs_triton]


class ThreeWays(FullBatchWrite):
    """Takes what the rung below does, and the whole batch at differing positions by a way of its own."""

    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos):
        caches, new = (k_cache_layer, v_cache_layer), (key_new, value_new)
        if not self.takes_identity(batch_idx, pos, len(key_new)):
            return super().write(*caches, *new, batch_idx, block_idx, pos)
        self.identity(caches, new, self.tensor(block_idx), self.tensor(pos))
        return "identity_pos"

    def takes_identity(self, batch_idx, pos, batch_size):
        return len(batch_idx) == batch_size and len(set(pos)) > 1

    def identity(self, caches, new, block_idx, pos):
        kv_append_identity_pos_plain(*caches, *new, block_idx, pos)

    def tensor(self, numbers):
        return torch.tensor(numbers, dtype=torch.int32, device=self._device)


class SubsetTakenForAll(ThreeWays):
    def takes_identity(self, batch_idx, pos, batch_size):
        return len(set(pos)) > 1

    def identity(self, caches, new, block_idx, pos):
        super().identity(caches, [numbers[: len(pos)] for numbers in new], block_idx, pos)


class FullBatchAlwaysIdentity(ThreeWays):
    def takes_identity(self, batch_idx, pos, batch_size):
        return len(batch_idx) == batch_size


class IndexOfTheBatch(ThreeWays):
    """Answers with the right name, and does what the generic path does."""

    def identity(self, caches, new, block_idx, pos):
        batch_idx = torch.arange(len(pos), dtype=torch.int32, device=self._device)
        kv_append_plain(*caches, *new, batch_idx, block_idx, pos)


# --- tensors that are kept, of which all but one go by less than their lists ----------------------------


class Keeps(ThreeWays):
    def __init__(self, device):
        super().__init__(device)
        self.kept = {}

    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos):
        to = k_cache_layer, v_cache_layer, key_new, value_new
        if not self.takes_identity(batch_idx, pos, len(key_new)):
            return super().write(*to, batch_idx, block_idx, pos)
        write_identity_pos(*to, self.index("blocks", block_idx), self.index("slots", pos))
        return "identity_pos"

    def index(self, name, numbers):
        key = self.key(name, numbers)
        if key not in self.kept:
            self.kept[key] = self.tensor(numbers)
        return self.kept[key]

    def key(self, name, numbers):
        return name, tuple(numbers)


class KeepsTheLast(Keeps):
    """A right part: one tensor of each name."""

    def index(self, name, numbers):
        if self.kept.get(name, (None,))[0] != numbers:
            self.kept[name] = numbers, self.tensor(numbers)
        return self.kept[name][1]


class KeptBySum(Keeps):
    def key(self, name, numbers):
        return name, len(numbers), sum(numbers)


# --- kernels, of which each breaks one contract ---------------------------------------------------------


@triton.jit
def identity_pos_kernel(
    k_cache_ptr, v_cache_ptr, key_ptr, value_ptr, blocks_ptr, slots_ptr,
    stride_n, stride_h, stride_t, key_stride_b, key_stride_h, value_stride_b, value_stride_h,
    D, BLOCK_D: tl.constexpr, OF_ROW: tl.constexpr, IN_32_BITS: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(0), tl.program_id(1)
    block = tl.load(blocks_ptr + b)
    if not IN_32_BITS:
        block = block.to(tl.int64)
    slot = tl.load(slots_ptr + b * OF_ROW)
    place = block * stride_n + h * stride_h + slot * stride_t
    d = tl.arange(0, BLOCK_D)
    mask = (d < D) | (not HAS_MASK)
    key = tl.load(key_ptr + b * key_stride_b + h * key_stride_h + d, mask=mask)
    value = tl.load(value_ptr + b * value_stride_b + h * value_stride_h + d, mask=mask)
    tl.store(k_cache_ptr + place + d, key, mask=mask)
    tl.store(v_cache_ptr + place + d, value, mask=mask)


class Kernel(ThreeWays):
    def __init__(self, device):
        super().__init__(device)
        self.wrong = self.options()

    def options(self):
        return {}

    def identity(self, caches, new, block_idx, pos):
        options = {"OF_ROW": 1, "IN_32_BITS": False, "HAS_MASK": True} | self.wrong
        numbers = sizes(caches[0], key=new[0], value=new[1]) | self.strides(caches[0])
        identity_pos_kernel[self.grid(new[0])](*caches, *new, block_idx, pos, **numbers, **options)

    def strides(self, cache):
        return {}

    def grid(self, key):
        return tuple(key.shape[:2])


class KernelWithGridTurned(Kernel):
    def grid(self, key):
        return key.shape[1], key.shape[0]


IN_ITS_SLOT = "each named request's key is in its slot: with requests "
ONE_SLOT = "`write` takes the path of its batch, and returns its name: the whole batch goes to one slot, and "
KEPT = (
    r"a write uses its own lists, and none that was kept from another write: after a write to slots "
    r"\[2, 0, 1\] of blocks \[4, 1, 2\], each named request's key is in its slot: .* "
)
DIFFERING = r"\[0, 1\] of a batch of 2 \(2 heads of 16 values\) to slots \[3, 1\] of blocks \[1, 0\], "
WRONG = {
    SubsetTakenForAll: IN_ITS_SLOT
    + r"\[1, 3\] of a batch of 4 .*, the key of request [13] in slot \d of block",
    FullBatchAlwaysIdentity: ONE_SLOT
    + r"it returned 'identity_pos', expected 'full_batch'\. On that path only the blocks differ: .* "
    "Tried with",
    IndexOfTheBatch: "no index is sent that the path does not need: with requests "
    + DIFFERING
    + "3 index tensors were made, expected at most 2 on the path 'identity_pos'.* batch_idx is 0, 1, 2, …",
    KeptBySum: KEPT
    + r".* to slots \[2, 3, 1\] of blocks \[4, 1, 2\], the key of request 1 in slot 3 of block 1",
    KernelWithGridTurned: r"a kernel touches the elements of its tensors and nothing else: .* program "
    r"\(0, 2\) of identity_pos_kernel writes .* the grid is \(2, 3\)",
}


class Loops:
    """One request at a time, in Python."""

    def __init__(self, device):
        pass

    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos):
        for b, block, slot in zip(batch_idx, block_idx, pos, strict=True):
            k_cache_layer[block, :, slot] = key_new[b]
            v_cache_layer[block, :, slot] = value_new[b]
        if len(batch_idx) < len(key_new):
            return "generic"
        return "full_batch" if len(set(pos)) == 1 else "identity_pos"


RIGHT = (Loops, KeepsTheLast, Kernel)


test_wrong_parts, test_right_parts = gate_tests("04", "kv_write", WRONG, RIGHT)
