"""Lesson 03's gate: kernels for the full batch pass, and wrong ones are refused by what they break."""

import re

import pytest
import torch

from labkit import lab
from labkit.kernels import kv_append_full_batch_plain
from labkit.kernels.triton_runtime import tl, triton, triton_status
from labkit.kvcache import FullBatchWrite, IdentityPosWrite, IndexedWrite
from labkit.learn import not_attempted

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(triton_status().mode == "off", reason=triton_status().reason),
]


@pytest.fixture(scope="module")
def here():
    return lab.start("03")


# --- kernels: a program per request and head, of which each option of `wrong` breaks one contract ---------


@triton.jit
def full_batch_kernel(
    cache_ptr, new_ptr, block_ptr, pos, stride_n, stride_h, stride_t, new_stride_b, new_stride_h, D,
    BLOCK_D: tl.constexpr, HAS_MASK: tl.constexpr, LOADS_ALL: tl.constexpr, IN_32_BITS: tl.constexpr,
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
        B, H, D = new.shape
        wrong = {"HAS_MASK": True, "LOADS_ALL": False, "IN_32_BITS": False} | wrong
        strides = *(cache_strides or cache.stride()[:3]), *new_strides[:2]
        full_batch_kernel[(B, H)](
            cache, new, block_idx, pos, *strides, D, BLOCK_D=triton.next_power_of_2(D), **wrong
        )

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

    def kernel(self, cache, new, new_strides, block_idx, pos, **wrong):
        B, H, D = new.shape
        options = {"HAS_MASK": True, "LOADS_ALL": False, "IN_32_BITS": False}
        full_batch_kernel[(B, H, 2)](
            cache, new, block_idx, pos, *cache.stride()[:3], *new_strides[:2], D,
            BLOCK_D=triton.next_power_of_2(D), **options,
        )  # fmt: skip


class KeepsTheBlocks(Kernels):
    """Lesson 01's signature, for a list that changes anywhere."""

    signature = None

    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos):
        if not self.is_full_batch(batch_idx, pos, len(key_new)):
            return super().write(k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos)
        if self.signature != (len(block_idx), block_idx[-1]):
            self.signature = len(block_idx), block_idx[-1]
            self.blocks = torch.tensor(block_idx, dtype=torch.int32, device=self.device)
        self.launch(k_cache_layer, key_new, self.blocks, self.slot(pos))
        self.launch(v_cache_layer, value_new, self.blocks, self.slot(pos))
        return "full_batch"


class StridesSwapped(Kernels):
    """Heads where slots are, and slots where heads are."""

    def launch(self, cache, new, block_idx, pos):
        n, h, t, _ = cache.stride()
        self.kernel(cache, new, new.stride(), block_idx, pos, cache_strides=(n, t, h))


class FarOutside(Kernels):
    """Counts blocks in bytes of the whole pool: without a net under it, the process would end."""

    def launch(self, cache, new, block_idx, pos):
        n, h, t, _ = cache.stride()
        self.kernel(cache, new, new.stride(), block_idx, pos, cache_strides=(n << 24, h, t))


class In32Bits(Kernels):
    def launch(self, cache, new, block_idx, pos):
        self.kernel(cache, new, new.stride(), block_idx, pos, IN_32_BITS=True)


class KeysSideBySide(Kernels):
    """Takes keys for one piece of memory, where they are views of what the model made."""

    def launch(self, cache, new, block_idx, pos):
        _, H, D = new.shape
        self.kernel(cache, new, (H * D, D), block_idx, pos)


class KeyStridesForValues(Kernels):
    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, *indices):
        self.strides = key_new.stride()
        return super().write(k_cache_layer, v_cache_layer, key_new, value_new, *indices)

    def launch(self, cache, new, block_idx, pos):
        self.kernel(cache, new, self.strides, block_idx, pos)


class WithoutGrid(Kernels):
    def launch(self, cache, new, block_idx, pos):
        strides = *cache.stride()[:3], *new.stride()[:2]
        wrong = {"HAS_MASK": True, "LOADS_ALL": False, "IN_32_BITS": False}
        full_batch_kernel(cache, new, block_idx, pos, *strides, new.shape[2], BLOCK_D=16, **wrong)


class LooksForAList(Kernels):
    """A whole batch's rows are a range."""

    def is_full_batch(self, batch_idx, pos, batch_size):
        return batch_idx == list(range(batch_size)) and len(set(pos)) == 1


class FirstPositionForAll(Kernels):
    def is_full_batch(self, batch_idx, pos, batch_size):
        return len(batch_idx) == batch_size


class EndsAlike(Kernels):
    def is_full_batch(self, batch_idx, pos, batch_size):
        return len(batch_idx) == batch_size and pos[0] == pos[-1]


class FirstTwoAlike(Kernels):
    def is_full_batch(self, batch_idx, pos, batch_size):
        return len(batch_idx) == batch_size and pos[0] == pos[min(1, len(pos) - 1)]


class SubsetTakenForAll(Kernels):
    def is_full_batch(self, batch_idx, pos, batch_size):
        return len(set(pos)) == 1

    def launch(self, cache, new, block_idx, pos):
        super().launch(cache, new[: len(block_idx)], block_idx, pos)


class OneSlotTooFar(Kernels):
    def slot(self, pos):
        return (pos[0] + 1) % 4


class NextSlotToo(Kernels):
    def launch(self, cache, new, block_idx, pos):
        for slot in (pos, (pos + 1) % 4):
            super().launch(cache, new, block_idx, slot)


class ValuesForgotten(Kernels):
    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, *indices):
        return super().write(k_cache_layer, v_cache_layer.clone(), key_new, value_new, *indices)


class KeysAsValues(Kernels):
    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, *indices):
        return super().write(k_cache_layer, v_cache_layer, key_new, key_new, *indices)


class OneHead(Kernels):
    def launch(self, cache, new, block_idx, pos):
        super().launch(cache[:, :1], new[:, :1], block_idx, pos)


class GenericReadsByBatchNotByRow(Kernels):
    """Takes the first F rows of the new keys, not those that batch_idx names."""

    def assign(self, cache, new, batch_idx, block_idx, pos):
        super().assign(cache, new, range(len(batch_idx)), block_idx, pos)


class OtherName(Kernels):
    def write(self, *arguments):
        return super().write(*arguments).replace("full_batch", "full")


class NoName(Kernels):
    def write(self, *arguments):
        super().write(*arguments)


class IndicesForAll(Kernels):
    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos):
        torch.tensor(list(pos), dtype=torch.int32)
        return super().write(k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos)


class NeverFullBatch(Kernels):
    def is_full_batch(self, batch_idx, pos, batch_size):
        return False


class SlotsAlone(FullBatchWrite):
    """Takes requests of a batch for a whole one, with the package's own write, which looks at shapes."""

    def write(self, k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos):
        if len(set(pos)) > 1:
            return super().write(k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos)
        blocks = torch.tensor(block_idx)
        kv_append_full_batch_plain(k_cache_layer, v_cache_layer, key_new, value_new, blocks, pos[0])
        return "full_batch"


@triton.jit
def misspelled_kernel(cache_ptr):
    tl.store(cache_ptr + tl.program_idx(0), 0.0)


class Misspelled(Kernels):
    def launch(self, cache, new, block_idx, pos):
        misspelled_kernel[(1,)](cache)


class Unwritten(Kernels):
    def launch(self, *arguments):
        not_attempted()


IN_ITS_SLOT = "each named request's key is in its slot: with requests "
NO_OTHER = "no slot is touched but those that are named: with requests "
PATH = "the path is told: (the whole batch goes to |a part of the batch is )"
WRONG = {
    WithoutMask: NO_OTHER
    + r"\[0, 1, 2\] of a batch of 3 \(heads: 3 of 20\) .* expected no change. Past a head's",
    LoadsAllLanes: r"a kernel touches the elements of its tensors and nothing else: .*3 of 20.* program "
    r"\(0, 2\) of full_batch_kernel reads 60 numbers from the first of new_ptr, \[3, 3, 20\]",
    TwiceByTheGrid: r"no two programs write one number: .*programs \(0, 0, 0\) and \(0, 0, 1\) of full_batch",
    KeepsTheBlocks: r"a write goes by its own lists, and by none that was kept of another: ",
    StridesSwapped: IN_ITS_SLOT
    + r"\[0, 1, 2\] .* the key of request 1 in slot 2 of block 1, .* \(it went to slot 0 of block 2",
    FarOutside: r"a kernel touches the elements of its tensors and nothing else: .* program \(0, 0\) of "
    r"full_batch_kernel writes 8,589,934,[0-9]+ numbers from the first of cache_ptr, \[6, 2, 4, 16\]",
    In32Bits: r"a place in a large pool is found: .* of blocks \[262144\], .* is in block 0\. .* 64 bits",
    KeyStridesForValues: r"each named request's value is in its slot: .* values have strides of their own",
    WithoutGrid: r"every write can be made: with .* in square brackets: `kernel\[grid\]",
    LooksForAList: PATH + r".* `write` returned 'generic', .* \(a `range`, which equals no list",
    KeysSideBySide: IN_ITS_SLOT + r"\[0, 1, 2\] .* the key of request 1 in .* strides of their own",
    FirstPositionForAll: IN_ITS_SLOT
    + r"\[0, 1\] .* slots \[3, 1\] of blocks \[1, 0\], the key of request 1 in "
    r"slot 1 of block 0, .* \(nothing was written\), expected .* `write` returned 'full_batch', expected "
    "'generic'",
    EndsAlike: IN_ITS_SLOT + r"\[0, 1, 2\] .* slots \[2, 0, 2\] .* the key of request 1 in slot 0 of block 1",
    FirstTwoAlike: IN_ITS_SLOT + r"\[0, 1, 2, 3\] .* slots \[1, 1, 1, 0\] .* the key of request 3 in slot 0",
    SubsetTakenForAll: IN_ITS_SLOT
    + r"\[0, 2, 3\] of a batch of 4 .* the key of request [23] in slot 1 of block",
    OneSlotTooFar: IN_ITS_SLOT
    + r".* slot 2 of block 1, head 0, number 0 of 16, is .* \(nothing was written\)",
    NextSlotToo: NO_OTHER + r"\[0, 1, 2\] .* the key in slot 3 of block 1, head 0, number 0 of 16, was",
    ValuesForgotten: r"each named request's value is in its slot: .* \(nothing was written\)",
    KeysAsValues: r"each named request's value is in its slot: .* the value of request 1 in slot 2",
    OneHead: IN_ITS_SLOT
    + r".* head 1, number 0 of 16, is .* \(nothing was written\), .* Every head is written",
    GenericReadsByBatchNotByRow: IN_ITS_SLOT
    + r"\[0, 2, 3\] of a batch of 4 .* the key of request [23] in slot 1",
    OtherName: PATH + r".* `write` returned 'full', expected 'full_batch'\. There, blocks alone differ",
    NoName: PATH + r".* `write` returned None, expected 'full_batch'",
    IndicesForAll: r"no index is sent that the path does not need: .* 2 index tensors were made, .* most 1",
    NeverFullBatch: PATH + r".* `write` returned 'generic', expected 'full_batch'",
    IndexedWrite: PATH + r".* `write` returned 'indexed', expected 'full_batch'",
    IdentityPosWrite: PATH + r".* `write` returned 'identity_pos', expected 'generic'",
    Misspelled: r"every write can be made: with .* `write` raised \w+Error: .*program_idx",
    SlotsAlone: r"every write can be made: with requests \[0, 2, 3\] of a batch of 4 .* ValueError: "
    r"block_idx has shape \[3\], expected \[4\], at .* a part of the batch is written",
    Unwritten: r"^kv_write: not attempted yet\.$",
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


RIGHT = (FullBatchWrite, Kernels, Plain)


@pytest.mark.parametrize("part", WRONG, ids=lambda part: part.__name__)
def test_a_wrong_part_is_refused_by_the_contract_that_it_breaks(here, part):
    report = here.check(kv_write=part)
    assert not report.ok and re.search(WRONG[part], report.text), report


@pytest.mark.parametrize("part", RIGHT, ids=lambda part: part.__name__)
def test_a_right_part_passes_in_whatever_clothes(here, part):
    report = here.check(kv_write=part)
    assert report.ok and report.text.startswith("kv_write: right."), report
