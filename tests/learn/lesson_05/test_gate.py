"""Lesson 05's gate: managers with mutable records pass, and wrong ones are refused by what they break."""

from dataclasses import dataclass

import pytest
from gate_tests import gate_tests

from labkit.kvcache import KVBlockManager, MutableInfoBlockManager, MutableKVBlockInfo
from labkit.learn.lesson_05.traps import CountsBeforeTheWrite, SharesTheRecord

pytestmark = pytest.mark.slow


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


class CopyWithoutItsNumbers(Mutable):
    def copy_on_write(self, layer_idx, block_id):
        new_id = super().copy_on_write(layer_idx, block_id)
        self.k_cache[layer_idx, self.block_infos[new_id].block_index] = 0
        return new_id


class CountedBeforeTheWrite(Mutable):
    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        infos = [self.ready(layer_idx, block_ids) for block_ids in block_ids_list]
        block_idx, pos = [info.block_index for info in infos], [info.length for info in infos]
        self.count(infos)
        self.write_batch(layer_idx, range(len(infos)), block_idx, pos, key_new, value_new)


class TakesBack:
    """Takes back what was counted before the write, when the write fails."""

    def write_batch(self, layer_idx, batch_idx, block_idx, pos, *new):
        try:
            super().write_batch(layer_idx, batch_idx, block_idx, pos, *new)
        except BaseException:
            for block_index in block_idx:
                self.block_infos[self.layer_offset(layer_idx) + block_index].length -= 1
            raise


class Undone(TakesBack, CountedBeforeTheWrite):
    """A right part: when a block is missing, nothing was counted yet."""


class CountsWhileItCollects(TakesBack, CountsBeforeTheWrite):
    """Does not take back what it has counted when a block is missing."""


class NeverShorter(Mutable):
    """A length that only grows cannot be undone."""

    def set_length(self, block_id, length):
        info = self.block_infos[block_id]
        info.length = max(info.length, length)


class PutBackIntoTheTable(Mutable):
    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        super().append_token_batch(layer_idx, block_ids_list, key_new, value_new)
        for block_ids in block_ids_list:
            self.block_infos[block_ids[-1]] = self.block_infos[block_ids[-1]]


class FastLook(Mutable):
    """Asks `ready_block` only where it must, and counts the path of the others."""

    def ready(self, layer_idx, block_ids):
        if not block_ids or self.append_takes_block(block_ids):
            return super().ready(layer_idx, block_ids)
        self.append_paths["in_place"] += 1
        return self.block_infos[block_ids[-1]]


class FastLookThatIsNotCounted(FastLook):
    def ready(self, layer_idx, block_ids):
        info = super().ready(layer_idx, block_ids)
        self.append_paths["in_place"] = 0
        return info


class ReservedWithoutSayingWhere(MutableInfoBlockManager):
    def reserve_token_batch(self, table_idx, block_ids_list):
        super().reserve_token_batch(table_idx, block_ids_list)
        return []


OWN = "a token is written after its request's last one, into a block of its own: layer 0, request "
IN_PLACE = "a record is counted up in place: "
RESERVED = "`reserve_token_batch` makes room for one token per request, and counts it: layer 0"
WRONG = {
    CopyWithoutItsNumbers: r"layer 0, request \d, token \d+ .*: its key there is zeros, expected the key of",
    CountedBeforeTheWrite: "a token is counted when it is written: after layer 0's write had raised, layer 0 "
    "counted 8 tokens for request 0, expected 7",
    CountsWhileItCollects: r"after layer 0 had run out of blocks in the middle of the batch, layer 0 counted",
    NeverShorter: r"a failed step can be undone: block \d+ is booked as",
    PutBackIntoTheTable: IN_PLACE + r"in a step .* was written for the blocks \[\d+, .*\], expected for none",
    FastLookThatIsNotCounted: "`append_paths` counts how each token's block was made ready: a step that "
    r"appended 8 tokens, in 2 layers, counted -?\d+, expected 8",
    SharesTheRecord: OWN
    + r"0 \(row 0\): the record of block 4 has block_index 5, expected 4\. .* so has a copy",
    ReservedWithoutSayingWhere: RESERVED
    + r"'s lists \[\] were said to have changed, expected \[0, 1, 2, 3\]",
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


RIGHT = (FastLook, OwnRecords, Undone)


test_wrong_parts, test_right_parts = gate_tests("05", "block_info", WRONG, RIGHT)
