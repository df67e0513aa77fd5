"""Lesson 04's gate: identity-pos writes pass, and plausible wrong ones are refused by what they break."""

import pytest
import torch
from gate_tests import gate_tests
from triton_marks import needs_triton

from labkit.kernels import kv_append_identity_pos_plain, kv_append_plain
from labkit.kvcache import FullBatchWrite
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


RIGHT = (Loops, KeepsTheLast)


test_wrong_parts, test_right_parts = gate_tests("04", "kv_write", WRONG, RIGHT)
