"""Lesson 02's gate: batched appends pass, and plausible wrong ones are refused by what they break."""

from contextlib import suppress

import pytest
from gate_tests import gate_tests

from labkit.learn.lesson_02.toy import CopiesAfterTheWrite

pytestmark = pytest.mark.slow


class Batched:
    """Makes every last block ready, writes each layer once, and then counts."""

    def __init__(self, kv_manager):
        self.manager = kv_manager

    def append(self, sessions, keys, values):
        for layer_idx in self.layers():
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_layer(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def layers(self):
        return range(self.manager.num_layers)

    def append_layer(self, layer_idx, lists, keys, values):
        last_ids = [self.ready(layer_idx, block_ids) for block_ids in lists]
        self.write(layer_idx, last_ids, keys, values)
        self.count(last_ids)

    def ready(self, layer_idx, block_ids):
        return self.manager.ready_block(layer_idx, block_ids)

    def write(self, layer_idx, last_ids, keys, values):
        infos = [self.manager.info(block_id) for block_id in last_ids]
        self.write_rows(layer_idx, self.rows(last_ids), infos, keys, values)

    def rows(self, last_ids):
        return range(len(last_ids))

    def write_rows(self, layer_idx, rows, infos, keys, values):
        block_idx, pos = [info.block_index for info in infos], [info.length for info in infos]
        self.manager.write_batch(layer_idx, rows, block_idx, pos, keys, values)

    def count(self, last_ids):
        for block_id in last_ids:
            self.manager.set_length(block_id, self.manager.info(block_id).length + 1)


class NoCopyOfASharedBlock(Batched):
    def ready(self, layer_idx, block_ids):
        if not block_ids or self.manager.info(block_ids[-1]).length == self.manager.block_size:
            return super().ready(layer_idx, block_ids)
        return block_ids[-1]


class CopyAfterTheWrite(NoCopyOfASharedBlock):
    def append_layer(self, layer_idx, lists, keys, values):
        super().append_layer(layer_idx, lists, keys, values)
        for block_ids in lists:
            if self.manager.refcount(block_ids[-1]) > 1:
                block_ids[-1] = self.manager.copy_on_write(layer_idx, block_ids[-1])


class CountedBeforeTheWrite(Batched):
    def append_layer(self, layer_idx, lists, keys, values):
        last_ids = [self.ready(layer_idx, block_ids) for block_ids in lists]
        infos = [self.manager.info(block_id) for block_id in last_ids]
        self.count(last_ids)
        self.write_rows(layer_idx, range(len(lists)), infos, keys, values)


class ErrorSwallowed(Batched):
    def write(self, *arguments):
        with suppress(RuntimeError):
            super().write(*arguments)


class KeysAndValuesSwapped(Batched):
    def append_layer(self, layer_idx, lists, keys, values):
        super().append_layer(layer_idx, lists, values, keys)


class CountedTwice(Batched):
    def count(self, last_ids):
        super().count(last_ids)
        super().count(last_ids[:1])


class BlocksOfAllForSomeRows(Batched):
    def rows(self, last_ids):
        return range(len(last_ids) - 1)


class OneWritePerRow(Batched):
    def write(self, layer_idx, last_ids, keys, values):
        for b, block_id in enumerate(last_ids):
            self.write_rows(layer_idx, [b], [self.manager.info(block_id)], keys, values)


class TwoWrites(Batched):
    """Writes the rows that needed a block in a second call, by their rows of the batch."""

    def append(self, sessions, keys, values):
        manager = self.manager
        for layer_idx, (key, value) in enumerate(zip(keys, values, strict=True)):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            slow = [b for b, block_ids in enumerate(lists) if manager.append_takes_block(block_ids)]
            fast = [b for b in range(len(lists)) if b not in slow]
            for rows in filter(None, (fast, slow)):
                last_ids = [self.ready(layer_idx, lists[b]) for b in rows]
                infos = [manager.info(block_id) for block_id in last_ids]
                self.write_rows(layer_idx, rows, infos, key, value)
                self.count(last_ids)


class NothingIsFast(Batched):
    """Writes each token by itself: a batched write that no token reaches."""

    def append_layer(self, layer_idx, lists, keys, values):
        for b, block_ids in enumerate(lists):
            self.manager.append_token(layer_idx, block_ids, keys[b], values[b])


class FastPath(Batched):
    """Writes the tokens whose block has room and one holder together, and the others one by one."""

    def append_layer(self, layer_idx, lists, keys, values):
        fast = [b for b, block_ids in enumerate(lists) if self.is_fast(block_ids)]
        if fast:
            self.write_fast(layer_idx, fast, lists, keys, values)
        for b in set(range(len(lists))).difference(fast):
            self.manager.append_token(layer_idx, lists[b], keys[b], values[b])

    def write_fast(self, layer_idx, rows, lists, keys, values):
        last_ids = [lists[b][-1] for b in rows]
        infos = [self.manager.info(block_id) for block_id in last_ids]
        self.write_rows(layer_idx, rows, infos, keys, values)
        self.count(last_ids)

    def is_fast(self, block_ids):
        return self.has_room(block_ids[-1]) and self.has_one_holder(block_ids[-1])

    def has_room(self, block_id):
        return self.manager.info(block_id).length < self.manager.block_size

    def has_one_holder(self, block_id):
        return self.manager.refcount(block_id) == 1


class SharedIsFast(FastPath):
    def has_one_holder(self, block_id):
        return True


class FullIsFast(FastPath):
    def has_room(self, block_id):
        return True


class NoneIsFast(FastPath):
    def has_room(self, block_id):
        return False


class FastButOneByOne(FastPath):
    def write_fast(self, layer_idx, rows, lists, keys, values):
        for b in rows:
            self.manager.append_token(layer_idx, lists[b], keys[b], values[b])


OWN = "a token is written after its request's last one, into a block of its own: layer 0, request "
ONE_WRITE = "one write per layer and step: "
RECORD = "a block's record says where it is, where it begins and how full it is: layer 0, "
STORED = "the cache holds each token's own key and value: "
COUNTED = "a token is counted when it is written: "
WRONG = {
    CopyAfterTheWrite: OWN + r"0 \(row 0\): block \d+ was written while it had 3 holders, expected 1",
    CountedBeforeTheWrite: COUNTED
    + r"after layer 0's write had raised, layer 0 counted 8 tokens for request "
    "0, expected 7. Count after the write",
    ErrorSwallowed: COUNTED + "layer 0's write raised, and the append did not. Let the error through",
    KeysAndValuesSwapped: r"layer 0, request \d, token \d+ \(slot \d of block \d+\): its key there is the "
    r"value of request (\d)'s token (\d+) in layer 0, expected the key of request \1's token \2 in layer 0",
    CountedTwice: RECORD + r"request 0, block \d+ \(place 1\): length is 4, expected 3\. .* counted once",
    CopiesAfterTheWrite: STORED
    + r"layer 0, request 1, token 6 \(slot 2 of block 4\): its key there is zeros, "
    r"expected the key of request 1's token 6 in layer 0\. .* copied before the write, not after",
    BlocksOfAllForSomeRows: r"a write names rows of the batch, .*: layer 0 was written with batch_idx "
    r"\[0, 1, 2\], block_idx \[\d+, \d+, \d+, \d+\] and pos .* rows 0 to 3",
    OneWritePerRow: ONE_WRITE + "layer 0 had 4 batched writes in a step of 4 requests",
    TwoWrites: ONE_WRITE
    + "layer 0 had 2 batched writes in a step of 4 requests, some of which take a block, "
    "expected 1. Make every block ready first",
    NothingIsFast: ONE_WRITE + "layer 0 had 0 batched writes .* whose last blocks all have room, expected 1. "
    "Collect the block",
    SharedIsFast: "had 3 holders, expected 1. Others hold this block, so the token is slow: `is_fast`",
    FullIsFast: "a block has slots 0 to 3. The block is full, so the token is slow: `is_fast` must say",
    NoneIsFast: ONE_WRITE + "layer 0 had 0 .* so its next token is fast: `is_fast` must say True",
    FastButOneByOne: ONE_WRITE + "layer 0 had 0 .* `is_fast` is right about them, so the gap is in `write`",
}


class CopiesFullBlocks(Batched):
    """A shared block is copied even if nothing is written into it any more."""

    def ready(self, layer_idx, block_ids):
        if block_ids and self.manager.refcount(block_ids[-1]) > 1:
            block_ids[-1] = self.manager.copy_on_write(layer_idx, block_ids[-1])
        return super().ready(layer_idx, block_ids)


class FourSlotsPerBlock(Batched):
    def ready(self, layer_idx, block_ids):
        last = block_ids[-1]
        if self.manager.info(last).length < 4 and self.manager.refcount(last) == 1:
            return last
        return super().ready(layer_idx, block_ids)


class Undone(CountedBeforeTheWrite):
    """Takes back what it has counted when the write fails."""

    errors: type[BaseException] = BaseException

    def write_rows(self, layer_idx, rows, infos, keys, values):
        try:
            super().write_rows(layer_idx, rows, infos, keys, values)
        except self.errors:
            for info in infos:
                block_id = self.manager.layer_offset(layer_idx) + info.block_index
                self.manager.set_length(block_id, info.length)
            raise


class UndoneUnlessInterrupted(Undone):
    errors = Exception


LATER_WRONG = {
    CopiesFullBlocks: r"no block is taken without need: layer 0 took 5 in a step of 4 requests, expect",
    FourSlotsPerBlock: r"slot 2 of block \d+ was written, but a block has slots 0 to 1",
    UndoneUnlessInterrupted: COUNTED
    + r"after layer 0's write was interrupted \(Ctrl-C is no `Exception`\), ",
}


RIGHT = (Undone, FastPath)


test_wrong_parts, test_right_parts = gate_tests("02", "kv_append", WRONG | LATER_WRONG, RIGHT)
