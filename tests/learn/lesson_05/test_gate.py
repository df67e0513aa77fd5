"""Lesson 05's gate: managers with mutable records pass, and wrong ones are refused by what they break."""

import re
from dataclasses import dataclass

import pytest

from labkit import lab
from labkit.kvcache import KVBlockManager, MutableInfoBlockManager, MutableKVBlockInfo
from labkit.learn import not_attempted
from labkit.learn.lesson_05.traps import CountsBeforeTheWrite, SharesTheRecord

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here():
    return lab.start("05")


class Mutable(KVBlockManager):
    """Counts in the record, without the package's fast look at the last block, and reserves nothing."""

    info_type = MutableKVBlockInfo

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        infos = [self.ready(layer_idx, block_ids) for block_ids in block_ids_list]
        self.write_infos(layer_idx, infos, key_new, value_new)
        self.count(infos)

    def ready(self, layer_idx, block_ids):
        return self.block_infos[self.ready_block(layer_idx, block_ids)]

    def write_infos(self, layer_idx, infos, key_new, value_new):
        block_idx, pos = [info.block_index for info in infos], [info.length for info in infos]
        self.write_batch(layer_idx, range(len(infos)), block_idx, pos, key_new, value_new)

    def count(self, infos):
        for info in infos:
            info.length += 1

    def set_length(self, block_id, length):
        self.block_infos[block_id].length = length


class CopyHasTheSameRecord(Mutable):
    def copy_on_write(self, layer_idx, block_id):
        old = self.block_infos[block_id]
        new_id = super().copy_on_write(layer_idx, block_id)
        self.block_infos[new_id] = old
        return new_id


class CopyWithoutItsLength(Mutable):
    def copy_on_write(self, layer_idx, block_id):
        new_id = super().copy_on_write(layer_idx, block_id)
        self.block_infos[new_id].length = 0
        return new_id


class CopyWithoutItsNumbers(Mutable):
    def copy_on_write(self, layer_idx, block_id):
        new_id = super().copy_on_write(layer_idx, block_id)
        self.k_cache[layer_idx, self.block_infos[new_id].block_index] = 0
        return new_id


class NoCopyOfASharedBlock(Mutable):
    def ready(self, layer_idx, block_ids):
        info = self.block_infos[block_ids[-1]]
        return super().ready(layer_idx, block_ids) if info.length == self.block_size else info


class NoNewBlockAtABoundary(Mutable):
    def ready(self, layer_idx, block_ids):
        is_shared = self.block_refcounts[block_ids[-1]] > 1
        return super().ready(layer_idx, block_ids) if is_shared else self.block_infos[block_ids[-1]]


class StartNotSet(Mutable):
    def allocate_block(self, layer_idx, start):
        return super().allocate_block(layer_idx, 0)


class StartCountedInBlocks(Mutable):
    def allocate_block(self, layer_idx, start):
        return super().allocate_block(layer_idx, start // self.block_size)


class CountedBeforeTheWrite(Mutable):
    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        infos = [self.ready(layer_idx, block_ids) for block_ids in block_ids_list]
        block_idx, pos = [info.block_index for info in infos], [info.length for info in infos]
        self.count(infos)
        self.write_batch(layer_idx, range(len(infos)), block_idx, pos, key_new, value_new)


class CountsWhileItCollects(Mutable):
    """Takes back what it has counted when the write fails, but not when a block is missing."""

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        infos, block_idx, pos = [], [], []
        for block_ids in block_ids_list:
            infos.append(self.ready(layer_idx, block_ids))
            block_idx.append(infos[-1].block_index)
            pos.append(infos[-1].length)
            infos[-1].length += 1
        try:
            self.write_batch(layer_idx, range(len(infos)), block_idx, pos, key_new, value_new)
        except BaseException:
            for info in infos:
                info.length -= 1
            raise


class Undone(Mutable):
    """Counts before the write, and takes it back when the write fails."""

    errors: type[BaseException] = BaseException

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        infos = [self.ready(layer_idx, block_ids) for block_ids in block_ids_list]
        block_idx, pos = [info.block_index for info in infos], [info.length for info in infos]
        self.count(infos)
        try:
            self.write_batch(layer_idx, range(len(infos)), block_idx, pos, key_new, value_new)
        except self.errors:
            for info in infos:
                info.length -= 1
            raise


class UndoneUnlessInterrupted(Undone):
    errors = Exception


class NeverShorter(Mutable):
    """A length that only grows cannot be undone."""

    def set_length(self, block_id, length):
        info = self.block_infos[block_id]
        info.length = max(info.length, length)


class FourSlotsPerBlock(Mutable):
    def ready(self, layer_idx, block_ids):
        info = self.block_infos[block_ids[-1]] if block_ids else None
        if info is None or info.length == 4 or self.block_refcounts[block_ids[-1]] > 1:
            return super().ready(layer_idx, block_ids)
        self.append_paths["in_place"] += 1
        return info


class SlotOfTheTokenBefore(Mutable):
    def write_infos(self, layer_idx, infos, key_new, value_new):
        self.count(infos)
        super().write_infos(layer_idx, infos, key_new, value_new)


class CountedTwice(Mutable):
    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        super().append_token_batch(layer_idx, block_ids_list, key_new, value_new)
        self.count([self.block_infos[block_ids[-1]] for block_ids in block_ids_list[-1:]])


class NewBlocksNotCounted(Mutable):
    def count(self, infos):
        super().count([info for info in infos if info.length])


class ReplacedInABatch(Mutable):
    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        infos = [self.ready(layer_idx, block_ids) for block_ids in block_ids_list]
        self.write_infos(layer_idx, infos, key_new, value_new)
        for block_ids, info in zip(block_ids_list, infos, strict=True):
            record = self.info_type(info.layer, info.block_index, info.start, info.length + 1)
            self.block_infos[block_ids[-1]] = record


class PutBackIntoTheTable(Mutable):
    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        super().append_token_batch(layer_idx, block_ids_list, key_new, value_new)
        for block_ids in block_ids_list:
            self.block_infos[block_ids[-1]] = self.block_infos[block_ids[-1]]


class OldSetLength(Mutable):
    def set_length(self, block_id, length):
        KVBlockManager.set_length(self, block_id, length)


class OldRecords(Mutable):
    info_type = KVBlockManager.info_type


@dataclass
class WithoutSlots:
    layer: int
    block_index: int
    start: int
    length: int


class RecordsWithoutSlots(Mutable):
    info_type = WithoutSlots


@dataclass(slots=True)
class IndexFirst:
    block_index: int
    layer: int
    start: int
    length: int


class FieldsInAnotherOrder(Mutable):
    info_type = IndexFirst


class Uncompared:
    __slots__ = ("block_index", "layer", "length", "start")

    def __init__(self, layer, block_index, start, length):
        self.layer, self.block_index, self.start, self.length = layer, block_index, start, length


class RecordsThatCannotBeCompared(Mutable):
    info_type = Uncompared


@dataclass(frozen=True, slots=True)
class Frozen:
    layer: int
    block_index: int
    start: int
    length: int


class FrozenRecords(Mutable):
    info_type = Frozen


class FastLook(Mutable):
    """Asks `ready_block` only where it must, and counts the path of the others."""

    def ready(self, layer_idx, block_ids):
        if not block_ids or not self.has_room(self.block_infos[block_ids[-1]], block_ids[-1]):
            return super().ready(layer_idx, block_ids)
        self.append_paths["in_place"] += 1
        return self.block_infos[block_ids[-1]]

    def has_room(self, info, block_id):
        return info.length < self.block_size and self.block_refcounts[block_id] == 1


class FastLookAtTheHoldersOnly(FastLook):
    def has_room(self, info, block_id):
        return self.block_refcounts[block_id] == 1


class FastLookAtTheRoomOnly(FastLook):
    def has_room(self, info, block_id):
        return info.length < self.block_size


class FastLookThatIsNotCounted(FastLook):
    def ready(self, layer_idx, block_ids):
        info = super().ready(layer_idx, block_ids)
        self.append_paths["in_place"] = 0
        return info


class FastLookAtNoEmptyList(FastLook):
    def ready(self, layer_idx, block_ids):
        return super().ready(layer_idx, block_ids) if self.block_infos[block_ids[-1]] else None


class AddsToTheLength(Mutable):
    def set_length(self, block_id, length):
        self.block_infos[block_id].length += length


class EmptyListsLeftOut(Mutable):
    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        if all(block_ids_list):
            super().append_token_batch(layer_idx, block_ids_list, key_new, value_new)


@dataclass(slots=True)
class ThreeFields:
    layer: int
    block_index: int
    length: int


class RecordsWithoutStart(Mutable):
    info_type = ThreeFields


class IdsForPlaces(Mutable):
    def write_infos(self, layer_idx, infos, key_new, value_new):
        block_idx = [self.layer_offset(layer_idx) + info.block_index for info in infos]
        pos = [info.length for info in infos]
        self.write_batch(layer_idx, range(len(infos)), block_idx, pos, key_new, value_new)


class ReservedWithoutCounting(MutableInfoBlockManager):
    def reserve_token_batch(self, table_idx, block_ids_list):
        changed = super().reserve_token_batch(table_idx, block_ids_list)
        for block_ids in block_ids_list:
            self.block_infos[block_ids[-1]].length -= 1
        return changed


class ReservedWithoutSayingWhere(MutableInfoBlockManager):
    def reserve_token_batch(self, table_idx, block_ids_list):
        super().reserve_token_batch(table_idx, block_ids_list)
        return []


class CopiesNotSaidToHaveChanged(MutableInfoBlockManager):
    """Tells by the number of blocks, which a copy leaves as it was."""

    def reserve_token_batch(self, table_idx, block_ids_list):
        before = [len(block_ids) for block_ids in block_ids_list]
        super().reserve_token_batch(table_idx, block_ids_list)
        return [b for b, block_ids in enumerate(block_ids_list) if len(block_ids) != before[b]]


class Unwritten(Mutable):
    def count(self, infos):
        not_attempted()


OWN = "a token is written behind its request's last one, into a block of its own: layer 0, request "
RECORD = "a block's record says where it is, where it begins and how full it is: layer 0, request "
IN_PLACE = "a record is counted up in place: "
RESERVED = "`reserve_token_batch` makes room for one token per request, and counts it: layer 0"
WRONG = {
    CopyHasTheSameRecord: OWN
    + r"0 \(row 0\): the record of block \d+ has block_index 1, expected \d+\. .* a copy's",
    CopyWithoutItsLength: OWN + r"0 \(row 0\): slot 0 of block \d+ was written, expected slot 2 of block \d+",
    CopyWithoutItsNumbers: r"layer 0, request \d, token \d+ .*: its key there is zeros, expected the key of",
    NoCopyOfASharedBlock: OWN + r"0 \(row 0\): block \d+ was written while it had 3 holders, expected 1",
    NoNewBlockAtABoundary: OWN
    + r"\d \(row \d\): slot 4 of block \d+ was written, but a block has slots 0 to 3",
    StartNotSet: RECORD + r"0, block \d+ \(place 1\): start is 0, expected 4\.",
    StartCountedInBlocks: RECORD + r"\d, block \d+ \(place \d\): start is \d, expected [48]\.",
    CountedBeforeTheWrite: "a token is counted when it is written: after layer 0's write had raised, layer 0 "
    "counted 8 tokens for request 0, expected 7",
    CountsWhileItCollects: r"after layer 0 had run out of blocks in the middle of the batch, layer 0 counted",
    UndoneUnlessInterrupted: r"after layer 0's write was interrupted \(Ctrl-C is no `Exception`\), layer 0 c",
    NeverShorter: r"a failed step can be undone: block \d+ is booked as",
    FourSlotsPerBlock: r"slot 2 of block \d+ was written, but a block has slots 0 to 1",
    SlotOfTheTokenBefore: OWN + r"0 \(row 0\): slot 3 of block \d+ was written, expected slot 2 of block \d+",
    CountedTwice: RECORD + r"3, block \d+ \(place 1\): length is 2, expected 1\. .* counted once",
    NewBlocksNotCounted: RECORD + r"3, block \d+ \(place 1\): length is 0, expected 1",
    ReplacedInABatch: IN_PLACE
    + r"in a step .*, block \d+ \(layer 0\) got another record, MutableKVBlockInfo",
    PutBackIntoTheTable: IN_PLACE + r"in a step .* was written for the blocks \[\d+, .*\], expected for none",
    OldSetLength: IN_PLACE + r"`set_length` of block \d+ \(layer 0\) put another record into the table, KVBl",
    OldRecords: IN_PLACE
    + "a record of class KVBlockInfo, the manager's `info_type`, has a length that cannot be set",
    RecordsWithoutSlots: "a record has four fields: a record of class WithoutSlots, .* let a fifth be set, "
    "the misspelt `lenght`, and its length is still 5, expected AttributeError",
    FieldsInAnotherOrder: "a record has four fields: a record of class IndexFirst, .* made from 1, 2, 3 "
    "and length=4 has layer = 2, expected 1",
    RecordsThatCannotBeCompared: "records are compared by their numbers: a record of class Uncompared, "
    ".* made twice from 1, 2, 3, 4 is not equal",
    FrozenRecords: IN_PLACE
    + "a record of class Frozen, the manager's `info_type`, has a length that cannot be set",
    FastLookAtTheHoldersOnly: OWN + r"\d \(row \d\): slot 4 of block \d+ was written, but a block has slots",
    FastLookAtTheRoomOnly: OWN + r"0 \(row 0\): block \d+ was written while it had 3 holders, expected 1",
    FastLookThatIsNotCounted: "`append_paths` counts how each token's block was made ready: a step that "
    r"appended 8 tokens, in 2 layers, counted -?\d+, expected 8",
    FastLookAtNoEmptyList: "a sequence may be empty: .* raised IndexError: list index out of range, at .*"
    "`ready_block` starts the first one",
    AddsToTheLength: IN_PLACE + r"`set_length\(\d+, 4\)` made the length 8, expected 4\. The second argument",
    EmptyListsLeftOut: r"a sequence may be empty: .* its blocks count \[\] tokens, expected \[1\]",
    RecordsWithoutStart: "a record has four fields: .* cannot be made from 1, 2, 3 and length=4 .* in this "
    "order",
    IdsForPlaces: r"layer 1, request 0 \(row 0\): block_idx \d+ of this layer was written, which has no",
    SharesTheRecord: OWN + r"0 \(row 0\): the record of block 4 has block_index 5, expected 4\. .* a copy's",
    CountsBeforeTheWrite: "a token is counted when it is written: .* layer 0 counted 8 tokens for request 0",
    ReservedWithoutCounting: RESERVED
    + r" counts \[6, 6, 3, 4\] tokens of the requests, expected \[7, 7, 4, 5\]",
    ReservedWithoutSayingWhere: RESERVED
    + r"'s lists \[\] were said to have changed, expected \[0, 1, 2, 3\]",
    CopiesNotSaidToHaveChanged: RESERVED
    + r"'s lists \[3\] were said to have changed, expected \[0, 1, 2, 3\]",
    KVBlockManager: IN_PLACE + "a record of class KVBlockInfo, .* has a length that cannot be set",
    Unwritten: r"^block_info: not attempted yet\.$",
}


@dataclass(slots=True)
class OwnRecord:
    """A record of the reader's, with a method."""

    layer: int
    block_index: int
    start: int
    length: int

    def grow(self):
        self.length += 1


class OwnRecords(Mutable):
    info_type = OwnRecord

    def count(self, infos):
        for info in infos:
            info.grow()


RIGHT = (MutableInfoBlockManager, Mutable, FastLook, OwnRecords, Undone)


@pytest.mark.parametrize("part", WRONG, ids=lambda part: part.__name__)
def test_a_wrong_part_is_refused_by_the_contract_that_it_breaks(here, part):
    report = here.check(block_info=part)
    assert not report.ok and re.search(WRONG[part], report.text), report


@pytest.mark.parametrize("part", RIGHT, ids=lambda part: part.__name__)
def test_a_right_part_passes_in_whatever_clothes(here, part):
    report = here.check(block_info=part)
    assert report.ok and report.text.startswith("block_info: right."), report
