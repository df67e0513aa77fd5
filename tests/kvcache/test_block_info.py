"""A block's record in both forms: the same four numbers, one replaced and one changed."""

import sys

import pytest

from labkit.kvcache import KVBlockInfo, MutableKVBlockInfo

NUMBERS = {"layer": 1, "block_index": 7, "start": 12, "length": 3}


def test_the_immutable_one_cannot_be_counted_in():
    info = KVBlockInfo(**NUMBERS)
    with pytest.raises(AttributeError):
        info.length += 1
    assert info.length == 3


def test_the_mutable_one_counts_in_place_and_has_room_for_nothing_else():
    info = MutableKVBlockInfo(**NUMBERS)
    before = id(info)
    info.length += 1
    assert (info.length, id(info)) == (4, before)
    with pytest.raises(AttributeError):
        info.refcount = 1
    assert not hasattr(info, "__dict__") and sys.getsizeof(info) < 100
