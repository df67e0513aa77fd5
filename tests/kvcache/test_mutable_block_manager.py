"""Room for a token before there is one: made in place, behind a boundary, in a copy, or not at all."""

import pytest
import torch
from helpers import holds, kv_numbers, make_manager, manager_state
from hypothesis import given
from hypothesis import strategies as st
from reservations import count, kinds, prompted, reserve

from labkit.kvcache import MutableInfoBlockManager, OneTableBlockManager, PrefixCache


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


# --- one table for all layers -----------------------------------------------------------------------


def test_a_block_is_taken_once_for_all_layers():
    one, per_layer = (
        make_manager(kind, num_layers=3) for kind in (OneTableBlockManager, MutableInfoBlockManager)
    )
    sessions = [prompted(manager, 0, 10) for manager in (one, per_layer)]
    assert one.num_tables == 1 and per_layer.num_tables == 3
    assert sessions[0].block_ids_per_layer == [[0, 1, 2]]
    assert sessions[1].block_ids_per_layer == [[0, 1, 2], [8, 9, 10], [16, 17, 18]]
    assert one.num_free_blocks == per_layer.num_free_blocks == 5
    assert one.k_cache.shape == per_layer.k_cache.shape  # the memory is the same; the books are a third
    assert [one.info(i).length for i in range(3)] == [4, 4, 2]
    assert torch.equal(one.k_cache, per_layer.k_cache) and torch.equal(one.v_cache, per_layer.v_cache)
    sessions[0].release()
    assert one.num_free_blocks == 8
    one.check_integrity([])


def test_live_slots_are_those_of_every_layer():
    manager = make_manager(OneTableBlockManager, num_layers=3)
    prompted(manager, 0, 6)
    live = manager.live_slots()
    assert live.shape == (3, 8, 4)
    expected = torch.zeros(8, 4, dtype=torch.bool)
    expected[0] = expected[1, :2] = True
    assert all(torch.equal(layer, expected) for layer in live)
