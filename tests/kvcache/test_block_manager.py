"""KVBlockManager: what each command does to the cache, the books and the sharers."""

from functools import partial

import helpers
import pytest
import torch
from helpers import APPENDS, append_batch, append_tokens, holds, kv_numbers, manager_state
from hypothesis import given
from hypothesis import strategies as st
from reservations import prompted

from labkit.engine import InferenceSession
from labkit.kvcache import (
    FullBatchWrite,
    IdentityPosWrite,
    IndexedWrite,
    KVBlockManager,
    MutableInfoBlockManager,
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

BATCHED = APPENDS[1:]
TOKEN_PATHS = ["first", "in_place", "boundary", "copy_on_write"]


@pytest.mark.slow
@pytest.mark.parametrize("append", BATCHED)
@given(
    writer=st.sampled_from([IndexedWrite, FullBatchWrite, IdentityPosWrite]),
    block_size=st.integers(1, 5),
    lengths=st.lists(st.integers(0, 7), min_size=1, max_size=4),
    forked=st.lists(st.integers(0, 9), max_size=4),
    data=st.data(),
)
def test_a_batch_is_its_tokens_one_by_one(make_manager, append, writer, block_size, lengths, forked, data):
    """Empty, with room, full or shared, two sharers of one block among them: same books, same bytes."""
    sizes = {"block_size": block_size, "max_blocks_per_layer": 80}
    managers = [make_manager(kv_write=writer(torch.device("cpu")), **sizes), helpers.make_manager(**sizes)]
    each = []
    for manager in managers:
        sessions = [prompted(manager, 100 * i, length) for i, length in enumerate(lengths)]
        for which in forked:
            sessions.append(sessions[which % len(sessions)].fork())
        each.append(sessions)
    batches = st.lists(st.integers(0, len(each[0]) - 1), min_size=1, unique=True)
    for step, batch in enumerate(data.draw(st.lists(batches, min_size=1, max_size=4))):
        for how, sessions in zip((append, "append_token"), each, strict=True):
            append_batch(how, [sessions[i] for i in batch], first=1000 + 10 * step)
    ids = [[session.block_ids_per_layer for session in sessions] for sessions in each]
    assert ids[0] == ids[1]
    assert comparable(managers[0]) == comparable(managers[1])
    assert torch.equal(managers[0].k_cache, managers[1].k_cache)
    assert torch.equal(managers[0].v_cache, managers[1].v_cache)
    managers[0].check_integrity(each[0])


def comparable(manager):
    """The books, whatever the kind of record; of the paths, those of tokens."""
    known = manager_state(manager)
    records = {i: (r.layer, r.block_index, r.start, r.length) for i, r in known.pop("block_infos").items()}
    paths = known.pop("append_paths")
    return known, records, [paths[path] for path in TOKEN_PATHS]


class BrokenWrite(IndexedWrite):
    """Fails in its second call, in the middle: keys are written, values are not."""

    num_calls = 0

    def write(self, k_cache_layer, v_cache_layer, *batch):
        self.num_calls += 1
        if self.num_calls != 2:
            return super().write(k_cache_layer, v_cache_layer, *batch)
        super().write(k_cache_layer, v_cache_layer.clone(), *batch)
        raise RuntimeError("no write")


@pytest.mark.parametrize("append", BATCHED)
def test_when_the_write_of_a_batch_fails_no_length_is_ahead_of_the_data(make_manager, append):
    """The danger of counting in place: a record that has counted a token before it is written."""
    manager = make_manager(max_blocks_per_layer=20, kv_write=BrokenWrite(torch.device("cpu")))
    numbers = (0, 2, 4, 6)
    batch = [prompted(manager, 10 * i, n) for i, n in enumerate(numbers)]
    sharer = batch[3].fork()
    with pytest.raises(RuntimeError, match="no write"):
        append_batch(append, batch, first=100)
    # Layer 0 has its tokens, layer 1 has none.
    lengths = [[manager.num_tokens(ids) for ids in session.block_ids_per_layer] for session in batch]
    assert lengths == [[n + 1, n] for n in numbers]
    for session in batch:
        session.roll_back()
    manager.check_integrity([*batch, sharer])
    append_batch(append, batch, first=200)
    for i, (session, n) in enumerate(zip(batch, numbers, strict=True)):
        assert holds(session, *([(10 * i, n)] if n else []), (200 + i, 1))
    assert holds(sharer, (30, 6))


# --- share, free, truncate -------------------------------------------------------------------------


# --- when a command fails --------------------------------------------------------------------------


# --- index arithmetic ------------------------------------------------------------------------------


@given(
    block_size=st.integers(1, 5),
    held=st.integers(0, 12),
    grown=st.integers(0, 12),
    sharers=st.integers(0, 2),
)
def test_blocks_to_reach_is_what_growing_takes(make_manager, block_size, held, grown, sharers):
    manager = make_manager(block_size=block_size, max_blocks_per_layer=40)
    session = InferenceSession(manager)
    append_tokens(session, first=0, num_tokens=held)
    kept = [session.fork() for _ in range(sharers)]
    free = manager.num_free_blocks
    predicted = session.blocks_to_reach(held + grown)
    for t in range(grown):
        takes_block = session.next_token_takes_block
        free_before = manager.num_free_blocks
        append_tokens(session, first=held + t)
        assert free_before - manager.num_free_blocks == takes_block
    assert free - manager.num_free_blocks == predicted
    manager.check_integrity([session, *kept])
