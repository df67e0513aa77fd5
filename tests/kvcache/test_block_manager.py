"""KVBlockManager: what each command does to the cache, the books and the sharers; and a block's record."""

import sys
from functools import partial

import helpers
import pytest
import torch
from helpers import APPENDS, Boom, append_tokens, failing, holds, kv_numbers
from hypothesis import given
from hypothesis import strategies as st
from reservations import prompted

from labkit.engine import InferenceSession
from labkit.kvcache import (
    KVBlockInfo,
    KVBlockManager,
    MutableInfoBlockManager,
    MutableKVBlockInfo,
    OneTableBlockManager,
)


@pytest.fixture(scope="module", params=[KVBlockManager, MutableInfoBlockManager])
def make_manager(request):
    return partial(helpers.make_manager, request.param)


# --- append_token, case by case --------------------------------------------------------------------


def test_a_shared_block_with_room_is_copied_before_it_is_written(make_manager):
    manager = make_manager()
    first = InferenceSession(manager)
    append_tokens(first, first=0, num_tokens=6)
    second = first.fork()
    before = manager.k_cache.clone(), manager.v_cache.clone()
    append_tokens(second, first=100)
    assert first.block_ids_per_layer == [[0, 1], [8, 9]]
    assert second.block_ids_per_layer == [[0, 2], [8, 10]]
    assert [manager.refcount(i) for i in (0, 1, 2)] == [2, 1, 1]
    assert manager.info(2) == manager.info_type(layer=0, block_index=2, start=4, length=3)
    assert manager.append_paths["copy_on_write"] == 2
    assert torch.equal(manager.k_cache[:, :2], before[0][:, :2])
    assert torch.equal(manager.v_cache[:, :2], before[1][:, :2])
    assert holds(first, (0, 6)) and holds(second, (0, 6), (100, 1))
    # The last sharer of a block owns it.
    append_tokens(first, first=200)
    assert first.block_ids_per_layer == [[0, 1], [8, 9]]
    assert holds(first, (0, 6), (200, 1)) and holds(second, (0, 6), (100, 1))
    manager.check_integrity([first, second])


# --- append_prompt ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", [KVBlockManager, MutableInfoBlockManager, OneTableBlockManager])
@given(
    block_size=st.integers(1, 9),
    first=st.integers(1, 20),
    second=st.integers(0, 20),
    shared=st.booleans(),
)
def test_a_prompt_in_pieces_is_the_prompt_in_one(kind, block_size, first, second, shared):
    manager = helpers.make_manager(kind, num_layers=3, block_size=block_size, max_blocks_per_layer=60)
    session = InferenceSession(manager)
    session.append_prompt(*kv_numbers(manager, 0, first))
    holders = [session, session.fork()] if shared else [session]
    session.append_prompt(*kv_numbers(manager, first, second))
    assert holds(session, (0, first + second)) and holds(holders[-1], (0, holders[-1].num_tokens))
    assert not manager.append_paths  # it counts decoded tokens
    manager.check_integrity(holders)


# --- a batch ---------------------------------------------------------------------------------------


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
