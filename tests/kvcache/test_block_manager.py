"""KVBlockManager: a batch whose write fails, and a block's record; else see test_kvcache_stateful.py."""

import sys
from functools import partial

import helpers
import pytest
import torch
from helpers import APPENDS, Boom, failing
from reservations import prompted

from labkit.kvcache import (
    KVBlockInfo,
    KVBlockManager,
    MutableInfoBlockManager,
    MutableKVBlockInfo,
)


@pytest.fixture(scope="module", params=[KVBlockManager, MutableInfoBlockManager])
def make_manager(request):
    return partial(helpers.make_manager, request.param)


@pytest.mark.parametrize("append", APPENDS[1:])
def test_when_the_write_of_a_batch_fails_no_length_is_ahead_of_the_data(make_manager, monkeypatch, append):
    """The danger of counting in place: a record that has counted a token before it is written."""
    manager = make_manager()
    batch = [prompted(manager, 10 * i, n) for i, n in enumerate((2, 4, 6))]
    monkeypatch.setattr(manager.kv_write, "write", failing(manager.kv_write.write))
    block_ids_list = [session.block_ids_per_layer[0] for session in batch]
    with pytest.raises(Boom):
        getattr(manager, append)(0, block_ids_list, *torch.zeros(2, 3, 2, 3))
    assert [manager.num_tokens(block_ids) for block_ids in block_ids_list] == [2, 4, 6]
    for session in batch:
        session.roll_back()
    manager.check_integrity(batch)


# --- a block's record -------------------------------------------------------------------------------

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
