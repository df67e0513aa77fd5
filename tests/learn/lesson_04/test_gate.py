"""Lesson 04's gate: identity-pos writes pass, and plausible wrong ones are refused by what they break."""

import re

import pytest
import torch
from triton_marks import needs_triton

from labkit import lab
from labkit.kernels import kv_append_identity_pos_plain, kv_append_plain
from labkit.kernels.triton_runtime import tl, triton
from labkit.kvcache import FullBatchWrite, IdentityPosWrite, IndexedWrite
from labkit.learn import not_attempted
from labkit.learn.lesson_03.offsets import sizes
from labkit.learn.lesson_04.forms import write_identity_pos

pytestmark = [pytest.mark.slow, needs_triton]


@pytest.fixture(scope="module")
def here():
    return lab.start("04")


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


class SubsetAtOnePosition(ThreeWays):
    """Asks about the position first, and forgets the batch there."""

    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos):
        if len(set(pos)) > 1:
            return super().write(k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos)
        new = key_new[: len(pos)], value_new[: len(pos)]
        self._full_batch(k_cache_layer, v_cache_layer, *new, self.tensor(block_idx), pos[0])
        return "full_batch"


class FirstPositionForAll(ThreeWays):
    def identity(self, caches, new, block_idx, pos):
        super().identity(caches, new, block_idx, pos[:1].repeat(len(pos)))


class PositionsRising(ThreeWays):
    def identity(self, caches, new, block_idx, pos):
        super().identity(caches, new, block_idx, pos.sort().values)


class BlocksSorted(ThreeWays):
    def identity(self, caches, new, block_idx, pos):
        super().identity(caches, new, block_idx.sort().values, pos)


class BlockAndSlotSwapped(ThreeWays):
    def identity(self, caches, new, block_idx, pos):
        super().identity(caches, new, pos, block_idx.clamp(max=3))


class RowsByBlock(ThreeWays):
    """Takes row b of the new keys for block b of the pool."""

    def identity(self, caches, new, block_idx, pos):
        super().identity(caches, [numbers[block_idx.argsort()] for numbers in new], block_idx, pos)


class ValuesForgotten(ThreeWays):
    def identity(self, caches, new, block_idx, pos):
        caches[0][block_idx.long(), :, pos.long()] = new[0]


class LastRowForgotten(ThreeWays):
    def identity(self, caches, new, block_idx, pos):
        super().identity(caches, [numbers[:-1] for numbers in new], block_idx[:-1], pos[:-1])


class FullBatchAlwaysIdentity(ThreeWays):
    def takes_identity(self, batch_idx, pos, batch_size):
        return len(batch_idx) == batch_size


class OneRequestIsNoBatch(ThreeWays):
    """Takes the identity where there is one request, whose position is always the same as all others'."""

    def takes_identity(self, batch_idx, pos, batch_size):
        return len(batch_idx) == batch_size == 1 or super().takes_identity(batch_idx, pos, batch_size)


class IndexOfTheBatch(ThreeWays):
    """Answers with the right name, and does what the generic path does."""

    def identity(self, caches, new, block_idx, pos):
        batch_idx = torch.arange(len(pos), dtype=torch.int32, device=self._device)
        kv_append_plain(*caches, *new, batch_idx, block_idx, pos)


class AlwaysGeneric(ThreeWays):
    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos):
        indices = map(self.tensor, (list(batch_idx), block_idx, pos))
        kv_append_plain(k_cache_layer, v_cache_layer, key_new, value_new, *indices)
        return "generic"


class FirstTwoPositions(ThreeWays):
    def takes_identity(self, batch_idx, pos, batch_size):
        return len(batch_idx) == batch_size > 1 and pos[0] != pos[1]


class FallsThrough(ThreeWays):
    """Writes, and then lets the rung below write and answer."""

    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos):
        super().write(k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos)
        to = k_cache_layer, v_cache_layer, key_new, value_new
        return FullBatchWrite.write(self, *to, batch_idx, block_idx, pos)


class NoName(ThreeWays):
    """Does not hand on what the path is called."""

    def write(self, *arguments):
        super().write(*arguments)


class PrefixTakenForAll(ThreeWays):
    """Asks whether the rows are 0, 1, 2, …, and not whether these are all."""

    def takes_identity(self, batch_idx, pos, batch_size):
        return list(batch_idx) == list(range(len(batch_idx))) and len(set(pos)) > 1


class ListsForTensors(ThreeWays):
    def identity(self, caches, new, block_idx, pos):
        write_identity_pos(*caches, *new, block_idx.tolist(), pos.tolist())


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


class KeptByTheBeginning(Keeps):
    """Compares as many numbers as both lists have."""

    def index(self, name, numbers):
        before, kept = self.kept.get(name, ((), None))
        if kept is None or any(a != b for a, b in zip(before, numbers, strict=False)):
            self.kept[name] = numbers, self.tensor(numbers)
        return self.kept[name][1]


class KeptByNameAlone(Keeps):
    def key(self, name, numbers):
        return name


class KeptByTheFirst(Keeps):
    def key(self, name, numbers):
        return name, len(numbers), numbers[0]


class KeptBySum(Keeps):
    def key(self, name, numbers):
        return name, len(numbers), sum(numbers)


class KeptByTheSameNumbers(Keeps):
    """Forgets that the order of the numbers says which request they are for."""

    def __init__(self, device):
        super().__init__(device)
        self.last = {}

    def index(self, name, numbers):
        if sorted(self.last.get(name, ())) != sorted(numbers):
            self.last[name], self.kept[name] = numbers, self.tensor(numbers)
        return self.kept[name]


class SlotsKeptByBlocks(Keeps):
    """Takes new slots only when the blocks are others, as if these came together."""

    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos):
        self.blocks = tuple(block_idx)
        return super().write(k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos)

    def key(self, name, numbers):
        return name, self.blocks


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


class KernelWithTheFirstSlot(Kernel):
    def options(self):
        return {"OF_ROW": 0}


class KernelIn32Bits(Kernel):
    def options(self):
        return {"IN_32_BITS": True}


class KernelWithoutMask(Kernel):
    def options(self):
        return {"HAS_MASK": False}


class KernelWithStridesSwapped(Kernel):
    def strides(self, cache):
        return {"stride_h": cache.stride(2), "stride_t": cache.stride(1)}


class KernelWithGridTurned(Kernel):
    def grid(self, key):
        return key.shape[1], key.shape[0]


class KernelForEachBlock(Kernel):
    def grid(self, key):
        return 6, key.shape[1]


class KernelOfHeadsInOnePlace(Kernel):
    def strides(self, cache):
        return {"stride_h": 0}


class KernelOfOneHead(Kernel):
    def grid(self, key):
        return key.shape[0], 1


class Unwritten(ThreeWays):
    def identity(self, caches, new, block_idx, pos):
        not_attempted()


IN_ITS_SLOT = "each named request's key is in its slot: with requests "
ONE_SLOT = "the path is told: the whole batch goes to one slot, and "
OTHER_SLOTS = "the path is told: the whole batch goes to slots that differ, and "
KEPT = (
    r"a write goes by its own lists, and by none that was kept of another: after a write to slots "
    r"\[2, 0, 1\] of blocks \[4, 1, 2\], each named request's key is in its slot: .* "
)
DIFFERING = r"\[0, 1\] of a batch of 2 \(heads: 2 of 16\) to slots \[3, 1\] of blocks \[1, 0\], "
WRONG = {
    SubsetTakenForAll: IN_ITS_SLOT
    + r"\[1, 3\] of a batch of 4 .*, the key of request [13] in slot \d of block",
    SubsetAtOnePosition: IN_ITS_SLOT
    + r"\[0, 2, 3\] of a batch of 4 .*, the key of request [23] in slot 1 of",
    FirstPositionForAll: IN_ITS_SLOT
    + DIFFERING
    + r"the key of request 1 in slot 1 .* \(nothing was written\)",
    PositionsRising: IN_ITS_SLOT + DIFFERING + r"the key of request \d in slot \d .* \(nothing was written\)",
    BlocksSorted: IN_ITS_SLOT + DIFFERING + r"the key of request \d in slot \d .* \(nothing was written\)",
    BlockAndSlotSwapped: IN_ITS_SLOT + DIFFERING + r"the key of request \d in slot \d",
    RowsByBlock: IN_ITS_SLOT
    + DIFFERING
    + r"the key of request 1 in slot 1 .* \(that of request 0, head 0, number 0\), .* The i-th of batch_idx",
    ValuesForgotten: "each named request's value is in its slot: with requests " + DIFFERING,
    LastRowForgotten: IN_ITS_SLOT
    + DIFFERING
    + r"the key of request 1 in slot 1 of block 0, .* \(nothing was",
    FullBatchAlwaysIdentity: ONE_SLOT
    + r"`write` returned 'identity_pos', expected 'full_batch'\. There, blocks alone differ: .* Tried with",
    OneRequestIsNoBatch: ONE_SLOT
    + r"`write` returned 'identity_pos', expected 'full_batch'.* Tried with requests \[0\] of a batch of 1 ",
    IndexOfTheBatch: "no index is sent that the path does not need: with requests "
    + DIFFERING
    + "3 index tensors were made, expected at most 2 on the path 'identity_pos'.* batch_idx is 0, 1, 2, …",
    AlwaysGeneric: ONE_SLOT + "`write` returned 'generic', expected 'full_batch'",
    FullBatchWrite: OTHER_SLOTS
    + "`write` returned 'generic', expected 'identity_pos'.* need not be sent.* Tried with requests "
    + DIFFERING.removesuffix(", ")
    + r"\.",
    IndexedWrite: ONE_SLOT + "`write` returned 'indexed', expected 'full_batch'",
    FirstTwoPositions: OTHER_SLOTS
    + r".* 'generic', expected 'identity_pos'.* \[0, 1, 2, 3\] .* slots \[1, 1, 1, 0\]",
    FallsThrough: OTHER_SLOTS + "`write` returned 'generic', expected 'identity_pos'",
    NoName: ONE_SLOT + r"`write` returned None, expected 'full_batch'\. Return the path's name\. There",
    PrefixTakenForAll: r"every write can be made: with requests \[0, 1\] of a batch of 4 .* ValueError: .* "
    "a part of the batch is written",
    ListsForTensors: r"every write can be made: .* TypeError: blocks is a list, expected an index tensor",
    Keeps: r"few tensors are kept: after 60 writes to other slots each, 61 index tensors still live, expecte",
    KeptByTheBeginning: r"a write goes by its own lists, and by none that was kept of another: ",
    KeptByNameAlone: KEPT + r"the key of request 1 in slot 1 of block 1, .* \(it went to slot 0 of block 1",
    KeptByTheFirst: KEPT
    + r".* to slots \[2, 0, 1\] of blocks \[4, 3, 2\], the key of request 1 in slot 0 of",
    KeptBySum: KEPT
    + r".* to slots \[2, 3, 1\] of blocks \[4, 1, 2\], the key of request 1 in slot 3 of block 1",
    SlotsKeptByBlocks: KEPT + "the key of request 1 in slot 1 of block 1",
    KeptByTheSameNumbers: KEPT
    + r".* to slots \[0, 2, 1\] of blocks \[4, 1, 2\], .* A kept tensor is handed out for a list that equals",
    KernelWithTheFirstSlot: IN_ITS_SLOT
    + DIFFERING
    + r"the key of request 1 in slot 1 of block 0, .* \(it went to slot 3 of block 0",
    KernelIn32Bits: r"a place in a large pool is found: .* is in block 0\. .* needs 64 bits",
    KernelWithoutMask: r"no slot is touched but those that are named: .*3 of 20.*a mask keeps",
    KernelWithStridesSwapped: IN_ITS_SLOT + DIFFERING + "the key of request 1 in slot 1 of block 0, head 0",
    KernelWithGridTurned: r"a kernel touches the elements of its tensors and nothing else: .* program "
    r"\(0, 2\) of identity_pos_kernel writes .* the grid is \(2, 3\)",
    KernelForEachBlock: r"a kernel touches the elements of its tensors and nothing else: .* program \(2, 0\) "
    r"of identity_pos_kernel reads 2 numbers .* of blocks_ptr, .* a program for each entry of an index",
    KernelOfHeadsInOnePlace: IN_ITS_SLOT
    + DIFFERING
    + r"the key of request 1 in slot 1 of block 0, head 0, .* \(that of request 1, head 1, number 0\)",
    KernelOfOneHead: IN_ITS_SLOT + DIFFERING + r"the key of request 1 in slot 1 of block 0, head 1, number 0",
    Unwritten: r"^kv_write: not attempted yet\.$",
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


RIGHT = (IdentityPosWrite, ThreeWays, Loops, KeepsTheLast, Kernel)


@pytest.mark.parametrize("part", WRONG, ids=lambda part: part.__name__)
def test_a_wrong_part_is_refused_by_the_contract_that_it_breaks(here, part):
    report = here.check(kv_write=part)
    assert not report.ok and re.search(WRONG[part], report.text), report


@pytest.mark.parametrize("part", RIGHT, ids=lambda part: part.__name__)
def test_a_right_part_passes_in_whatever_clothes(here, part):
    report = here.check(kv_write=part)
    assert report.ok and report.text.startswith("kv_write: right."), report
