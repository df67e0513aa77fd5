"""One table for all layers: the same memory, a part of the books."""

import torch
from helpers import holds, make_manager
from reservations import count, prompted, reserve

from labkit.kvcache import MutableInfoBlockManager, OneTableBlockManager


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


def test_live_slots_are_those_of_every_layer():
    manager = make_manager(OneTableBlockManager, num_layers=3)
    prompted(manager, 0, 6)
    live = manager.live_slots()
    assert live.shape == (3, 8, 4)
    expected = torch.zeros(8, 4, dtype=torch.bool)
    expected[0] = expected[1, :2] = True
    assert all(torch.equal(layer, expected) for layer in live)
