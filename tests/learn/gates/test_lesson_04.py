"""Lesson 04's gate: identity-pos writes pass, and plausible wrong ones are refused by what they break."""

import re

import pytest
import torch

from labkit import lab
from labkit.kernels import kv_append_identity_pos_plain, kv_append_plain
from labkit.kvcache import FullBatchWrite, IdentityPosWrite, IndexedWrite
from labkit.learn import not_attempted

pytestmark = pytest.mark.slow


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


class Unwritten(ThreeWays):
    def identity(self, caches, new, block_idx, pos):
        not_attempted()


IN_ITS_SLOT = "each named request's key is in its slot: with requests "
PATH = "the path is told: with requests "
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
    + r"the key of request \d in slot \d .* The i-th of batch_idx, block",
    ValuesForgotten: "each named request's value is in its slot: with requests " + DIFFERING,
    LastRowForgotten: IN_ITS_SLOT
    + DIFFERING
    + r"the key of request 1 in slot 1 of block 0, .* \(nothing was",
    FullBatchAlwaysIdentity: PATH + r".* `write` returned 'identity_pos', expected 'full_batch'\. Where the",
    OneRequestIsNoBatch: PATH + r"\[0\] of a batch of 1 .* returned 'identity_pos', expected 'full_batch'",
    IndexOfTheBatch: "no index is sent that the path does not need: with requests "
    + DIFFERING
    + "3 index tensors were made, expected at most 2 on the path 'identity_pos'.* batch_idx is 0, 1, 2, …",
    AlwaysGeneric: PATH + r".* `write` returned 'generic', expected 'full_batch'",
    FullBatchWrite: PATH
    + DIFFERING
    + "`write` returned 'generic', expected 'identity_pos'.* need not be sent",
    IndexedWrite: PATH + r".* `write` returned 'indexed', expected 'full_batch'",
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


RIGHT = (IdentityPosWrite, ThreeWays, Loops)


@pytest.mark.parametrize("part", WRONG, ids=lambda part: part.__name__)
def test_a_wrong_part_is_refused_by_the_contract_that_it_breaks(here, part):
    report = here.check(kv_write=part)
    assert not report.ok and re.search(WRONG[part], report.text), report


@pytest.mark.parametrize("part", RIGHT, ids=lambda part: part.__name__)
def test_a_right_part_passes_in_whatever_clothes(here, part):
    report = here.check(kv_write=part)
    assert report.ok and report.text.startswith("kv_write: right."), report
