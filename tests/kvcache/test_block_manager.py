"""A block's record; for all else of managers see test_kvcache_stateful.py."""

import sys

import pytest

from labkit.kvcache import KVBlockInfo, MutableKVBlockInfo

NUMBERS = {"layer": 1, "block_index": 7, "start": 12, "length": 3}


def test_the_immutable_one_cannot_be_counted_in():
    with pytest.raises(AttributeError):
        KVBlockInfo(**NUMBERS).length += 1


def test_the_mutable_one_has_room_for_nothing_else():
    info = MutableKVBlockInfo(**NUMBERS)
    with pytest.raises(AttributeError):
        info.refcount = 1
    assert not hasattr(info, "__dict__") and sys.getsizeof(info) < 100
