"""Room for a token before there is one: made in place, behind a boundary, in a copy, or not at all."""

import pytest
import torch
from helpers import failing, kv_numbers, make_manager, manager_state
from hypothesis import given
from hypothesis import strategies as st
from reservations import count, kinds, prompted, reserve

from labkit.errors import OutOfBlocksError
from labkit.kvcache import MutableInfoBlockManager, OneTableBlockManager


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


def test_live_slots_are_those_of_every_layer():
    manager = make_manager(OneTableBlockManager, num_layers=3)
    prompted(manager, 0, 6)
    live = manager.live_slots()
    assert live.shape == (3, 8, 4)
    expected = torch.zeros(8, 4, dtype=torch.bool)
    expected[0] = expected[1, :2] = True
    assert all(torch.equal(layer, expected) for layer in live)
