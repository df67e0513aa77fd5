"""Lesson 05's counts: what an append asks of Python, and the records of a block's life."""

import re

from labkit.kvcache import KVBlockInfo, KVBlockManager, MutableInfoBlockManager
from labkit.learn.lesson_05.work import block_life, work_of


def test_the_records_of_a_block_s_life():
    replaced, mutable = (block_life(k, 5) for k in (KVBlockManager, MutableInfoBlockManager))
    assert replaced == [2, 3, 4, 5, 6]  # one that says 0, and one for each token
    assert mutable == [1] * 5


class CountsInAComprehension(MutableInfoBlockManager):
    """With a list made in a comprehension, which is a call of its own up to Python 3.11 only."""

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        infos = [self.block_infos[block_ids[-1]] for block_ids in block_ids_list if block_ids]
        assert {info.layer for info in infos} <= {layer_idx}
        super().append_token_batch(layer_idx, block_ids_list, key_new, value_new)


def test_the_work_of_an_append_is_the_same_on_every_python():
    assert re.search("0 records, 6 calls, 6 reads", work_of(CountsInAComprehension, 3))


class OwnRecord(KVBlockInfo):
    """A record of a caller's that is made in its own way."""

    def __new__(cls, *numbers, **named):
        return super().__new__(cls, *numbers, **named)


class ReplacesOwnRecords(KVBlockManager):
    info_type = OwnRecord

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        for block_ids in block_ids_list:
            info = self.block_infos[self.ready_block(layer_idx, block_ids)]
            self.block_infos[block_ids[-1]] = OwnRecord(*info[:3], length=info.length + 1)


def test_records_of_a_caller_s_own_class_are_counted():
    assert int(re.search(r": (\d+) records", work_of(ReplacesOwnRecords, 3))[1]) >= 3


class Raises(KVBlockManager):
    def append_token_batch(self, *_):
        raise RuntimeError("not written yet")


def test_an_append_that_raises_is_not_counted():
    assert re.search(
        "^an append of 64 tokens: not counted, because it raised RuntimeError: not written yet",
        work_of(Raises),
    )
