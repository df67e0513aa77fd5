"""Room for a token before there is one: made in place, behind a boundary, in a copy, or not at all."""

import pytest
import torch
from helpers import failing, holds, kv_numbers, make_manager, manager_state
from hypothesis import given
from hypothesis import strategies as st
from reservations import count, kinds, prompted, reserve

from labkit.errors import OutOfBlocksError
from labkit.kvcache import MutableInfoBlockManager, PrefixCache


@kinds
def test_a_prompt_that_is_kept_is_copied_once_and_then_grown_in_place(kind):
    manager = make_manager(kind)
    session = prompted(manager, 0, 5)
    cache = PrefixCache(manager, 2)
    cache.insert((1, 2, 3, 4, 5), session.block_ids_per_layer, torch.zeros(1))
    changed = []
    for _ in range(4):
        changed.append(reserve(session))
        count(session)
        manager.check_integrity([session, *cache])
    yes, no = [[0]] * manager.num_tables, [[]] * manager.num_tables
    assert changed == [yes, no, no, yes]  # the copy, and the next block


@pytest.mark.slow
@given(
    block_size=st.integers(1, 5),
    lengths=st.lists(st.integers(0, 7), min_size=1, max_size=4),
    forked=st.lists(st.integers(0, 9), max_size=4),
    data=st.data(),
)
def test_what_is_booked_is_what_an_append_books(block_size, lengths, forked, data):
    """Rung 05's books: the same blocks of the same lengths, whoever shares them, and the same changes. What
    was shared is copied."""
    sizes = {"block_size": block_size, "max_blocks_per_layer": 80}
    managers = [make_manager(MutableInfoBlockManager, **sizes) for _ in range(2)]
    each, first_of = [], list(range(len(lengths)))  # whose prompt a session has
    for which in forked:
        first_of.append(first_of[which % len(first_of)])
    for manager in managers:
        sessions = [prompted(manager, 100 * i, length) for i, length in enumerate(lengths)]
        for which in forked:
            sessions.append(sessions[which % len(sessions)].fork())
        each.append(sessions)
    batches = st.lists(st.integers(0, len(each[0]) - 1), min_size=1, unique=True)
    for batch in data.draw(st.lists(batches, min_size=1, max_size=4)):
        appended, reserved = ([sessions[i] for i in batch] for sessions in each)
        before = [[list(ids) for ids in s.block_ids_per_layer] for s in reserved]
        new = torch.zeros(len(batch), 2, 3)
        for layer_idx in range(2):
            ids = [s.block_ids_per_layer[layer_idx] for s in appended]
            managers[0].append_token_batch(layer_idx, ids, new, new)
        changed = reserve(*reserved)
        for layer_idx in range(2):
            now = [s.block_ids_per_layer[layer_idx] for s in reserved]
            was = [ids[layer_idx] for ids in before]
            assert changed[layer_idx] == [b for b in range(len(batch)) if now[b] != was[b]]
        count(*appended, *reserved)
    expected, actual = (manager_state(manager) for manager in managers)
    del expected["append_paths"]["indexed"]
    assert actual == expected
    managers[1].check_integrity(each[1])
    for session, i in zip(each[1], first_of, strict=True):
        kept = (numbers[:, :, : lengths[i]] for numbers in session.dense_kv())
        assert all(map(torch.equal, kept, kv_numbers(managers[1], 100 * i, lengths[i])))


@pytest.mark.slow
@kinds
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4), num_forks=st.integers(0, 2), data=st.data()
)
def test_where_blocks_run_out_all_is_as_before_once_it_is_cut_back(kind, lengths, num_forks, data):
    """In whichever table and for whichever request; a private copy of a shared block may stay."""
    manager = make_manager(kind, max_blocks_per_layer=30)
    sessions = [prompted(manager, 100 * i, length) for i, length in enumerate(lengths)]
    sessions += [sessions[i % len(sessions)].fork() for i in range(num_forks)]
    taken = sum(s.next_token_takes_block for s in sessions) * manager.num_tables
    if not taken:
        return
    held = [s.dense_kv() for s in sessions]
    at_call = data.draw(st.integers(0, max(0, taken - 1 - num_forks * manager.num_tables)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager, "allocate_block", failing(manager.allocate_block, at_call, OutOfBlocksError))
        with pytest.raises(OutOfBlocksError):
            reserve(*sessions)
    for session in sessions:
        session.roll_back()
    manager.check_integrity(sessions)
    for session, kv in zip(sessions, held, strict=True):
        assert all(map(torch.equal, session.dense_kv(), kv))
    reserve(*sessions)
    count(*sessions)
    manager.check_integrity(sessions)


# --- room for a prompt -----------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize(("held", "num_tokens"), [(0, 9), (3, 1), (4, 1), (6, 11)])
def test_room_for_a_prompt_is_counted_and_nothing_is_written(kind, held, num_tokens):
    manager = make_manager(kind)
    session = prompted(manager, 100, held)
    bytes_before = manager.k_cache.clone(), manager.v_cache.clone()
    session.reserve_prompt(num_tokens)
    assert session.num_tokens == held + num_tokens
    manager.check_integrity([session])
    for cache, was in zip((manager.k_cache, manager.v_cache), bytes_before, strict=True):
        assert torch.equal(cache, was)


@kinds
def test_room_for_a_prompt_behind_a_shared_block_is_made_in_a_copy(kind):
    manager = make_manager(kind)
    session = prompted(manager, 100, 6)
    other = session.fork()
    other.reserve_prompt(5)
    for mine, its in zip(session.block_ids_per_layer, other.block_ids_per_layer, strict=True):
        assert its[0] == mine[0] and its[1] != mine[1] and len(its) == 3
    manager.check_integrity([session, other])
    keys, _ = other.dense_kv()
    assert torch.equal(keys[:, :, :6], kv_numbers(manager, 100, 6)[0])
    other.num_tokens = 6
    other.roll_back()
    manager.check_integrity([session, other])
    assert holds(session, (100, 6)) and holds(other, (100, 6))
