"""KVBlockManager: what each command does to the cache, the books and the sharers."""

from functools import partial

import helpers
import pytest
import torch
from helpers import APPENDS, append_batch, append_tokens, holds, kv_numbers, manager_state
from hypothesis import given
from hypothesis import strategies as st

from labkit.engine import InferenceSession
from labkit.errors import OutOfBlocksError
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


@pytest.mark.parametrize("layer_idx", [0, 1])
def test_free_blocks_are_those_of_the_layer_that_has_fewest(make_manager, layer_idx):
    manager = make_manager()
    manager.append_token(layer_idx, [], torch.rand(2, 3), torch.rand(2, 3))
    assert manager.num_free_blocks == 7


# --- append_token, case by case --------------------------------------------------------------------


def test_the_first_token_takes_a_block_in_its_layer(make_manager):
    manager = make_manager()
    block_ids = []
    key, value = torch.rand(2, 3), torch.rand(2, 3)
    manager.append_token(1, block_ids, key, value)
    assert block_ids == [8]  # layer 1's block 0 among 8 a layer
    assert manager.info(8) == manager.info_type(layer=1, block_index=0, start=0, length=1)
    assert manager.refcount(8) == 1
    assert manager.append_paths == {"first": 1}
    assert torch.equal(manager.k_cache[1, 0, :, 0], key)
    assert torch.equal(manager.v_cache[1, 0, :, 0], value)
    # Nothing else in the pool was written.
    manager.k_cache[1, 0, :, 0] = manager.v_cache[1, 0, :, 0] = 0
    assert not manager.k_cache.any() and not manager.v_cache.any()


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


def prompted(manager, first, num_tokens):
    session = InferenceSession(manager)
    session.append_prompt(*kv_numbers(manager, first, num_tokens))
    return session


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


def batch_that_runs_out(manager):
    """In place, boundary and copy find a block; the last one's boundary finds none. And a sharer."""
    batch = [prompted(manager, 10 * i, length) for i, length in enumerate((2, 4, 6, 4))]
    filler = prompted(manager, 90, 4 * (manager.num_free_blocks - 2))
    return batch, [batch[2].fork(), filler]


@pytest.mark.parametrize("append", APPENDS)
def test_a_batch_that_finds_no_block_halfway_is_undone_by_truncate(make_manager, append):
    manager = make_manager()
    batch, others = batch_that_runs_out(manager)
    live = manager.live_slots()[:, :, None, :, None]
    before = (manager.k_cache * live).clone(), (manager.v_cache * live).clone()
    with pytest.raises(OutOfBlocksError, match="layer 0 has no free block"):
        append_batch(append, batch, first=100)
    if append == "append_token_batch":  # no byte of anybody has changed
        assert torch.equal(manager.k_cache * live, before[0])
        assert torch.equal(manager.v_cache * live, before[1])
    lengths = [manager.num_tokens(session.block_ids_per_layer[0]) for session in batch]
    assert (
        lengths
        == {
            "append_token": [3, 5, 7, 4],
            "append_token_batch_fast_path": [3, 5, 7, 4],
            "append_token_batch": [2, 4, 6, 4],  # nothing is written before all are ready
        }[append]
    )
    for session in batch:
        session.roll_back()
    manager.check_integrity([*batch, *others])
    assert manager.num_free(0) == 2 - 1  # the copy of the shared block is kept
    assert manager.num_free(1) == 2
    assert [holds(s, (10 * i, n)) for i, (s, n) in enumerate(zip(batch, (2, 4, 6, 4), strict=True))] == [
        1
    ] * 4
    assert holds(others[0], (20, 6)) and holds(others[1], (90, others[1].num_tokens))
    others[1].release()  # now there is room
    append_batch(append, batch, first=200)
    for i, (session, n) in enumerate(zip(batch, (2, 4, 6, 4), strict=True)):
        assert holds(session, (10 * i, n), (200 + i, 1))
    assert holds(others[0], (20, 6))
    manager.check_integrity([*batch, others[0]])


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


@pytest.mark.parametrize("append", APPENDS)
def test_a_mutable_record_counts_and_the_other_is_replaced(append):
    for kind, stays in ((MutableInfoBlockManager, True), (KVBlockManager, False)):
        manager = helpers.make_manager(kind)
        session = prompted(manager, 0, 1)
        record = manager.info(0)
        append_batch(append, [session], first=1)
        assert (manager.info(0) is record) == stays
        assert (manager.info(0).length, record.length) == (2, 2 if stays else 1)


# --- share, free, truncate -------------------------------------------------------------------------


def test_the_block_freed_last_is_used_first(make_manager):
    manager = make_manager()
    sessions = [InferenceSession(manager) for _ in range(3)]
    for session in sessions:
        append_tokens(session, first=0)
    sessions[0].release()
    sessions[2].release()
    for expected in (2, 0, 3):  # last freed, freed before, never used
        session = InferenceSession(manager)
        append_tokens(session, first=0)
        assert session.block_ids_per_layer[0] == [expected]


# --- when a command fails --------------------------------------------------------------------------


@pytest.mark.parametrize(("num_tokens", "shared"), [(0, False), (3, False), (3, True), (4, True)])
@pytest.mark.parametrize("broken", ["key", "value"])
def test_a_write_that_fails_is_undone_by_truncate(make_manager, num_tokens, shared, broken):
    manager = make_manager()
    session = InferenceSession(manager)
    append_tokens(session, first=0, num_tokens=num_tokens)
    holders = [session, session.fork()] if shared else [session]
    numbers = {"key": torch.ones(2, 3), "value": torch.ones(2, 3)}
    numbers[broken] = torch.ones(5)
    with pytest.raises(RuntimeError, match=r"must match|expand"):
        manager.append_token(0, session.block_ids_per_layer[0], numbers["key"], numbers["value"])
    session.roll_back()
    manager.check_integrity(holders)
    append_tokens(session, first=50)
    assert holds(session, (0, num_tokens), (50, 1))


class UnwritableCache:
    """A cache whose blocks can be read but not copied."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __getitem__(self, place):
        return self.tensor[place]

    def __setitem__(self, place, value):
        raise RuntimeError("no write")


def test_a_copy_on_write_that_fails_leaves_the_sharers_as_they_were(make_manager):
    manager = make_manager()
    first = InferenceSession(manager)
    append_tokens(first, first=0, num_tokens=6)
    second = first.fork()
    writable = manager._pool
    manager._pool = UnwritableCache(writable)
    with pytest.raises(RuntimeError, match="no write"):
        manager.append_token(0, second.block_ids_per_layer[0], torch.zeros(2, 3), torch.zeros(2, 3))
    manager._pool = writable
    assert first.block_ids_per_layer == second.block_ids_per_layer
    assert manager.num_free_blocks == 6
    assert manager.append_paths["copy_on_write"] == 0
    manager.check_integrity([first, second])


# --- index arithmetic ------------------------------------------------------------------------------


@given(block_size=st.integers(1, 100), num_tokens=st.integers(0, 10_000))
def test_blocks_for_is_the_least_number_of_blocks_that_holds_the_tokens(make_manager, block_size, num_tokens):
    num_blocks = make_manager(block_size=block_size, max_blocks_per_layer=1).blocks_for(num_tokens)
    assert num_blocks * block_size >= num_tokens > (num_blocks - 1) * block_size


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
