"""KVBlockManager: what each command does to the cache, the books and the sharers; planted corruption."""

import pytest
import torch
from helpers import append_tokens, books, holds, kv_numbers, make_manager
from hypothesis import given
from hypothesis import strategies as st

from labkit.engine import InferenceSession
from labkit.errors import OutOfBlocksError
from labkit.kvcache import KVBlockInfo

# --- append_token, case by case --------------------------------------------------------------------


def test_the_first_token_takes_a_block_in_its_layer():
    manager = make_manager()
    block_ids = []
    key, value = torch.rand(2, 3), torch.rand(2, 3)
    manager.append_token(1, block_ids, key, value)
    assert block_ids == [8]  # layer 1's block 0 among 8 a layer
    assert manager.info(8) == KVBlockInfo(layer=1, block_index=0, start=0, length=1)
    assert manager.refcount(8) == 1
    assert manager.append_paths == {"first": 1}
    assert torch.equal(manager.k_cache[1, 0, :, 0], key)
    assert torch.equal(manager.v_cache[1, 0, :, 0], value)
    # Nothing else in the pool was written.
    manager.k_cache[1, 0, :, 0] = manager.v_cache[1, 0, :, 0] = 0
    assert not manager.k_cache.any() and not manager.v_cache.any()


def test_a_token_goes_in_place_while_its_block_has_room():
    manager = make_manager()
    session = InferenceSession(manager)
    append_tokens(session, first=0, num_tokens=4)
    assert session.block_ids_per_layer == [[0], [8]]
    assert manager.info(0).length == 4
    assert manager.append_paths == {"first": 2, "in_place": 6}  # in each of two layers
    assert holds(session, (0, 4))


def test_a_full_block_is_followed_by_a_new_one():
    manager = make_manager()
    session = InferenceSession(manager)
    append_tokens(session, first=0, num_tokens=5)
    assert session.block_ids_per_layer == [[0, 1], [8, 9]]
    assert manager.info(1) == KVBlockInfo(layer=0, block_index=1, start=4, length=1)
    assert manager.append_paths == {"first": 2, "in_place": 6, "boundary": 2}
    assert holds(session, (0, 5))


def test_a_shared_block_with_room_is_copied_before_it_is_written():
    manager = make_manager()
    first = InferenceSession(manager)
    append_tokens(first, first=0, num_tokens=6)
    second = first.fork()
    before = manager.k_cache.clone(), manager.v_cache.clone()
    append_tokens(second, first=100)
    assert first.block_ids_per_layer == [[0, 1], [8, 9]]
    assert second.block_ids_per_layer == [[0, 2], [8, 10]]
    assert [manager.refcount(i) for i in (0, 1, 2)] == [2, 1, 1]
    assert manager.info(2) == KVBlockInfo(layer=0, block_index=2, start=4, length=3)
    assert manager.append_paths["copy_on_write"] == 2
    assert torch.equal(manager.k_cache[:, :2], before[0][:, :2])
    assert torch.equal(manager.v_cache[:, :2], before[1][:, :2])
    assert holds(first, (0, 6)) and holds(second, (0, 6), (100, 1))
    # The last sharer of a block owns it.
    append_tokens(first, first=200)
    assert first.block_ids_per_layer == [[0, 1], [8, 9]]
    assert holds(first, (0, 6), (200, 1)) and holds(second, (0, 6), (100, 1))
    manager.check_integrity([first, second])


def test_a_shared_full_block_is_not_copied():
    manager = make_manager()
    first = InferenceSession(manager)
    append_tokens(first, first=0, num_tokens=4)
    second = first.fork()
    append_tokens(second, first=100)
    assert second.block_ids_per_layer == [[0, 1], [8, 9]]
    assert manager.refcount(0) == 2
    assert manager.append_paths["copy_on_write"] == 0


# --- append_prompt ---------------------------------------------------------------------------------


def test_a_prompt_fills_block_after_block():
    manager = make_manager()
    session = InferenceSession(manager)
    session.append_prompt(*kv_numbers(manager, 0, 10))
    assert session.block_ids_per_layer == [[0, 1, 2], [8, 9, 10]]
    assert [manager.info(i).length for i in (0, 1, 2)] == [4, 4, 2]
    assert not manager.append_paths  # it counts decoded tokens
    assert holds(session, (0, 10))
    manager.check_integrity([session])


def test_a_prompt_onto_a_shared_partial_tail_copies_it_once():
    manager = make_manager()
    first = InferenceSession(manager)
    first.append_prompt(*kv_numbers(manager, 0, 6))
    second = first.fork()
    second.append_prompt(*kv_numbers(manager, 100, 7))
    assert second.block_ids_per_layer[0] == [0, 2, 3, 4]
    assert [manager.refcount(i) for i in (0, 1, 2)] == [2, 1, 1]
    assert holds(first, (0, 6)) and holds(second, (0, 6), (100, 7))
    manager.check_integrity([first, second])


@given(
    block_size=st.integers(1, 9),
    first=st.integers(1, 20),
    second=st.integers(0, 20),
    shared=st.booleans(),
)
def test_a_prompt_in_pieces_is_the_prompt_in_one(block_size, first, second, shared):
    manager = make_manager(block_size=block_size, max_blocks_per_layer=60)
    session = InferenceSession(manager)
    session.append_prompt(*kv_numbers(manager, 0, first))
    holders = [session, session.fork()] if shared else [session]
    session.append_prompt(*kv_numbers(manager, first, second))
    assert holds(session, (0, first + second))
    manager.check_integrity(holders)


# --- share, free, truncate -------------------------------------------------------------------------


def test_a_block_goes_back_with_its_last_holder():
    manager = make_manager()
    first = InferenceSession(manager)
    append_tokens(first, first=0, num_tokens=6)
    second = first.fork()
    assert [manager.refcount(i) for i in (0, 1)] == [2, 2]
    first.release()
    assert first.block_ids_per_layer == [[], []] and first.num_tokens == 0
    assert [manager.refcount(i) for i in (0, 1)] == [1, 1]
    assert manager.num_free_blocks == 6
    assert holds(second, (0, 6))
    second.release()
    assert manager.num_free_blocks == 8
    manager.check_integrity([])


def test_the_block_freed_last_is_used_first():
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


def test_a_freed_sequences_blocks_are_used_again_in_their_order():
    manager = make_manager()
    for _ in range(2):
        session = InferenceSession(manager)
        append_tokens(session, first=0, num_tokens=12)
        assert session.block_ids_per_layer[0] == [0, 1, 2]
        session.release()


@pytest.mark.parametrize("kept", range(11))
def test_truncate_forgets_exactly_what_lies_past_it(kept):
    manager = make_manager()
    session = InferenceSession(manager)
    append_tokens(session, first=0, num_tokens=10)
    session.num_tokens = kept
    session.roll_back()
    manager.check_integrity([session])
    assert manager.num_free_blocks == 8 - manager.blocks_for(kept)
    append_tokens(session, first=50, num_tokens=2)
    assert holds(session, (0, kept), (50, 2))


def test_truncate_past_the_end_changes_nothing():
    manager = make_manager()
    session = InferenceSession(manager)
    append_tokens(session, first=0, num_tokens=6)
    before = books(manager)
    manager.truncate(session.block_ids_per_layer[0], 7)
    assert books(manager) == before


def test_truncate_refuses_to_cut_a_block_that_others_see():
    manager = make_manager()
    first = InferenceSession(manager)
    append_tokens(first, first=0, num_tokens=6)
    second = first.fork()
    before = books(manager)
    with pytest.raises(ValueError, match="block 1 is shared; it cannot be cut at token 5"):
        manager.truncate(second.block_ids_per_layer[0], 5)
    assert books(manager) == before
    manager.truncate(second.block_ids_per_layer[0], 4)  # at a block's end nothing is cut
    assert second.block_ids_per_layer[0] == [0]


# --- when a command fails --------------------------------------------------------------------------


def sole_holder(manager):
    session = InferenceSession(manager)
    append_tokens(session, first=0, num_tokens=manager.max_blocks_per_layer * manager.block_size)
    return session


def holder_of_a_shared_tail(manager):
    session = InferenceSession(manager)
    append_tokens(session, first=0, num_tokens=manager.max_blocks_per_layer * manager.block_size - 1)
    return session.fork()


def holder_of_nothing(manager):
    sole_holder(manager)
    return InferenceSession(manager)


@pytest.mark.parametrize("prepare", [sole_holder, holder_of_a_shared_tail, holder_of_nothing])
def test_out_of_blocks_leaves_the_books_unchanged(prepare):
    manager = make_manager()
    session = prepare(manager)
    block_ids = list(session.block_ids_per_layer[1])
    before = books(manager)
    with pytest.raises(OutOfBlocksError, match="layer 1 has no free block: all 8 blocks of 4 tokens"):
        manager.append_token(1, session.block_ids_per_layer[1], torch.zeros(2, 3), torch.zeros(2, 3))
    assert books(manager) == before
    assert session.block_ids_per_layer[1] == block_ids


@pytest.mark.parametrize("num_tokens", range(7))
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("broken", ["key", "value"])
def test_a_write_that_fails_is_undone_by_truncate(num_tokens, shared, broken):
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


def test_a_prompt_that_finds_no_block_halfway_is_undone_by_truncate():
    manager = make_manager()
    first = InferenceSession(manager)
    append_tokens(first, first=0, num_tokens=6)
    second = first.fork()
    with pytest.raises(OutOfBlocksError):
        second.append_prompt(*kv_numbers(manager, 100, 40))
    second.roll_back()
    assert manager.num_free_blocks == 5  # two sharers, and second's own copy of the tail
    manager.check_integrity([first, second])
    assert holds(first, (0, 6)) and holds(second, (0, 6))


class UnwritableCache:
    """A cache whose blocks can be read but not copied."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __getitem__(self, place):
        return self.tensor[place]

    def __setitem__(self, place, value):
        raise RuntimeError("no write")


@pytest.mark.parametrize("which", ["k_cache", "v_cache"])
def test_a_copy_on_write_that_fails_leaves_the_sharers_as_they_were(which):
    manager = make_manager()
    first = InferenceSession(manager)
    append_tokens(first, first=0, num_tokens=6)
    second = first.fork()
    writable = getattr(manager, which)
    setattr(manager, which, UnwritableCache(writable))
    with pytest.raises(RuntimeError, match="no write"):
        manager.append_token(0, second.block_ids_per_layer[0], torch.zeros(2, 3), torch.zeros(2, 3))
    setattr(manager, which, writable)
    assert first.block_ids_per_layer == second.block_ids_per_layer
    assert manager.num_free_blocks == 6
    assert manager.append_paths["copy_on_write"] == 0
    manager.check_integrity([first, second])


# --- index arithmetic ------------------------------------------------------------------------------


@given(block_size=st.integers(1, 100), num_tokens=st.integers(0, 10_000))
def test_blocks_for_is_the_least_number_of_blocks_that_holds_the_tokens(block_size, num_tokens):
    num_blocks = make_manager(block_size=block_size, max_blocks_per_layer=1).blocks_for(num_tokens)
    assert num_blocks * block_size >= num_tokens > (num_blocks - 1) * block_size


@given(
    block_size=st.integers(1, 5),
    held=st.integers(0, 12),
    grown=st.integers(0, 12),
    sharers=st.integers(0, 2),
)
def test_blocks_to_reach_is_what_growing_takes(block_size, held, grown, sharers):
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


# --- check_integrity catches what is planted -------------------------------------------------------


def leak_a_block(manager, session):
    manager._allocate_block(0, start=0)


def lose_a_reference(manager, session):
    manager._block_refcounts[1] = 2


def count_a_token_twice(manager, session):
    manager._set_length(1, 3)


def free_a_held_block(manager, session):
    manager._deallocate_block(1)


def free_a_block_twice(manager, session):
    freed = InferenceSession(manager)
    append_tokens(freed, first=0)
    freed.release()
    manager._freed[0].append(2)


def put_a_block_in_two_free_lists(manager, session):
    freed = InferenceSession(manager)
    append_tokens(freed, first=0)
    freed.release()
    manager._freed[1].append(manager._freed[0].pop())


def free_a_block_in_use(manager, session):
    manager._freed[0].append(1)


def hold_a_block_too_few(manager, session):
    manager._deallocate_block(session.block_ids_per_layer[0].pop())


def hold_an_empty_block_too_many(manager, session):
    append_tokens(session, first=6, num_tokens=2)
    session.block_ids_per_layer[0].append(manager._allocate_block(0, start=8))


def hold_blocks_in_the_wrong_order(manager, session):
    session.block_ids_per_layer[0].reverse()


def hold_another_layers_block(manager, session):
    session.block_ids_per_layer.reverse()


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (leak_a_block, r"reference counts differ from holders \(block: booked, held\): {2: \(1, 0\)}"),
        (lose_a_reference, r"reference counts differ .* {1: \(2, 1\)}"),
        (count_a_token_twice, r"block 1 is booked as .*length=3\), but its holder needs .*length=2\)"),
        (free_a_held_block, "block 1 is held but not allocated"),
        (free_a_block_twice, r"layer 0: used \[0, 1\] and freed \[2, 2\] blocks do not make up the 3"),
        (put_a_block_in_two_free_lists, r"layer 0: used \[0, 1\] and freed \[\] blocks do not make up the 3"),
        (free_a_block_in_use, r"layer 0: used \[0, 1\] and freed \[1\] blocks do not make up the 2"),
        (hold_a_block_too_few, "6 tokens in layer 0 are held in 1 blocks"),
        (hold_an_empty_block_too_many, "8 tokens in layer 0 are held in 3 blocks"),
        (hold_blocks_in_the_wrong_order, "block 1 is booked as .*start=4.* but its holder needs .*start=0"),
        (hold_another_layers_block, "block 8 is booked as .*layer=1.* but its holder needs .*layer=0"),
    ],
)
def test_check_integrity_names_what_is_off(plant, message):
    manager = make_manager()
    session = InferenceSession(manager)
    append_tokens(session, first=0, num_tokens=6)
    manager.check_integrity([session])
    plant(manager, session)
    with pytest.raises(AssertionError, match=message):
        manager.check_integrity([session])
