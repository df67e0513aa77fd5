"""One table for all layers: the same memory, a part of the books."""

import pytest
import torch
from helpers import holds, kv_numbers, make_manager
from hypothesis import given
from hypothesis import strategies as st
from reservations import count, prompted, reserve

from labkit.engine import InferenceSession
from labkit.kvcache import MutableInfoBlockManager, OneTableBlockManager, PrefixCache


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


@given(
    block_size=st.integers(1, 9), first=st.integers(1, 20), second=st.integers(0, 20), is_shared=st.booleans()
)
def test_a_prompt_in_pieces_is_in_every_layer_the_prompt_in_one(block_size, first, second, is_shared):
    manager = make_manager(OneTableBlockManager, num_layers=3, block_size=block_size, max_blocks_per_layer=60)
    session = prompted(manager, 0, first)
    holders = [session, session.fork()] if is_shared else [session]
    session.append_prompt(*kv_numbers(manager, first, second))
    assert holds(session, (0, first + second))
    assert all(holds(other, (0, first)) for other in holders[1:])
    manager.check_integrity(holders)


def test_a_prompt_onto_a_shared_tail_copies_it_in_every_layer():
    manager = make_manager(OneTableBlockManager, num_layers=3)
    first = prompted(manager, 0, 6)
    second = first.fork()
    second.append_prompt(*kv_numbers(manager, 100, 7))
    assert second.block_ids_per_layer == [[0, 2, 3, 4]]
    assert holds(first, (0, 6)) and holds(second, (0, 6), (100, 7))
    manager.check_integrity([first, second])


def test_a_copy_on_write_copies_the_bytes_of_every_layer():
    manager = make_manager(OneTableBlockManager, num_layers=3)
    first = prompted(manager, 7, 6)
    second = first.fork()
    assert reserve(first) == [[0]]
    old, new = second.block_ids_per_layer[0][-1], first.block_ids_per_layer[0][-1]
    assert (old, new) == (1, 2)
    for cache in (manager.k_cache, manager.v_cache):
        for layer in cache:
            assert torch.equal(layer[new], layer[old])
            assert layer[new][:, :2].any()
    assert not any(torch.equal(manager.k_cache[0, new], manager.k_cache[i, new]) for i in (1, 2))
    assert [manager.refcount(i) for i in (0, 1, 2)] == [2, 1, 1]
    manager.k_cache[:, new, :, 2:], manager.v_cache[:, new, :, 2:] = -1, -1  # what a step will write
    count(first)
    assert holds(second, (7, 6))
    manager.check_integrity([first, second])


@pytest.mark.parametrize("which", ["k_cache", "v_cache"])
def test_a_copy_that_fails_leaves_the_sharers_as_they_were(which):
    manager = make_manager(OneTableBlockManager)
    first = prompted(manager, 0, 6)
    second = first.fork()
    cache = getattr(manager, which)
    setattr(manager, which, None)
    with pytest.raises(TypeError):
        reserve(first)
    setattr(manager, which, cache)
    manager.check_integrity([first, second])
    assert manager.num_free_blocks == 6
    assert holds(first, (0, 6)) and holds(second, (0, 6))


def test_live_slots_are_those_of_every_layer():
    manager = make_manager(OneTableBlockManager, num_layers=3)
    prompted(manager, 0, 6)
    live = manager.live_slots()
    assert live.shape == (3, 8, 4)
    expected = torch.zeros(8, 4, dtype=torch.bool)
    expected[0] = expected[1, :2] = True
    assert all(torch.equal(layer, expected) for layer in live)


def test_each_layers_keys_and_values_are_its_own():
    manager = make_manager(OneTableBlockManager, num_layers=3)
    session = prompted(manager, 0, 6)
    keys, values = kv_numbers(manager, 0, 6)
    for layer_idx in range(3):
        k, v = manager.dense_kv(layer_idx, session.block_ids_per_layer[0])
        assert torch.equal(k, keys[layer_idx]) and torch.equal(v, values[layer_idx])


def test_a_cached_prompt_is_held_in_one_list():
    manager = make_manager(OneTableBlockManager)
    session = prompted(manager, 0, 6)
    cache = PrefixCache(manager, 1)
    cache.insert((1, 2, 3, 4, 5, 6), session.block_ids_per_layer, torch.zeros(1))
    manager.check_integrity([session, *cache])
    session.release()
    again = InferenceSession(manager, cache.lookup((1, 2, 3, 4, 5, 6, 7)))
    assert again.num_tokens == 6 and again.block_ids_per_layer == [[0, 1]]
    assert holds(again, (0, 6))
    again.release()
    cache.clear()
    assert manager.num_free_blocks == 8
    manager.check_integrity([])


def leak_a_block(manager, session):
    manager.allocate_block(0, start=0)


def lose_a_reference(manager, session):
    manager.block_refcounts[1] = 2


def reserve_and_forget(manager, session):
    reserve(session)


def free_a_held_block(manager, session):
    manager.deallocate_block(1)


def free_a_block_in_use(manager, session):
    manager._freed[0].append(1)


def hold_a_block_too_few(manager, session):
    manager.deallocate_block(session.block_ids_per_layer[0].pop())


def hold_blocks_in_the_wrong_order(manager, session):
    session.block_ids_per_layer[0].reverse()


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (leak_a_block, r"reference counts differ from holders \(block: booked, held\): {2: \(1, 0\)}"),
        (lose_a_reference, r"reference counts differ .* {1: \(2, 1\)}"),
        (reserve_and_forget, r"block 1 is booked as .*length=3\), but its holder needs .*length=2\)"),
        (free_a_held_block, "block 1 is held but not allocated"),
        (free_a_block_in_use, r"layer 0: used \[0, 1\] and freed \[1\] blocks do not make up the 2"),
        (hold_a_block_too_few, "6 tokens in layer 0 are held in 1 blocks"),
        (hold_blocks_in_the_wrong_order, "block 1 is booked as .*start=4.* but its holder needs .*start=0"),
    ],
)
def test_check_integrity_names_what_is_off_in_the_one_table(plant, message):
    manager = make_manager(OneTableBlockManager)
    session = prompted(manager, 0, 6)
    manager.check_integrity([session])
    plant(manager, session)
    with pytest.raises(AssertionError, match=message):
        manager.check_integrity([session])
