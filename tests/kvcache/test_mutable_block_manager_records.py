"""Records that are changed in place, room reserved before a write, and one table for all layers."""

import helpers
import pytest
import torch

from labkit.errors import OutOfBlocksError
from labkit.kvcache import KVBlockManager, MutableInfoBlockManager, OneTableBlockManager


@pytest.fixture(params=[MutableInfoBlockManager, OneTableBlockManager])
def manager(request):
    return helpers.make_manager(request.param)


def grow(manager: KVBlockManager, block_ids: list[int], count: int) -> None:
    """Count `count` tokens behind a sequence of table 0, by reserving them one by one."""
    for _ in range(count):
        manager.reserve_token_batch(0, [block_ids])


def test_a_record_stays_the_same_object_while_its_block_fills(manager):
    block_ids = []
    grow(manager, block_ids, 1)
    info = manager.info(block_ids[0])
    grow(manager, block_ids, 3)
    assert manager.info(block_ids[0]) is info
    assert (info.layer, info.block_index, info.start, info.length) == (0, 0, 0, 4)


def test_reserving_names_the_lists_that_changed(manager):
    empty, with_room, full = [], [], []
    grow(manager, with_room, 2)
    grow(manager, full, 4)
    before = list(with_room)
    assert manager.reserve_token_batch(0, [empty, with_room, full]) == [0, 2]
    assert (len(empty), with_room, len(full)) == (1, before, 2)
    assert [manager.num_tokens(ids) for ids in (empty, with_room, full)] == [1, 3, 5]


def test_reserving_behind_a_shared_tail_copies_it_first(manager):
    block_ids = []
    grow(manager, block_ids, 3)
    sharer = manager.share(block_ids)
    assert manager.reserve_token_batch(0, [sharer]) == [0]
    assert sharer != block_ids and manager.refcount(block_ids[0]) == manager.refcount(sharer[0]) == 1
    assert (manager.num_tokens(block_ids), manager.num_tokens(sharer)) == (3, 4)


def test_what_was_reserved_before_the_pool_ran_out_is_undone_by_truncate(manager):
    held = []
    grow(manager, held, 4 * manager.max_blocks_per_layer - 4)
    first, second = [], []
    with pytest.raises(OutOfBlocksError):
        manager.reserve_token_batch(0, [first, second])
    assert (manager.num_tokens(first), second) == (1, [])
    manager.truncate(first, 0)
    assert first == [] and manager.num_tokens(held) == 4 * manager.max_blocks_per_layer - 4


def test_appending_writes_and_counts():
    manager = helpers.make_manager(MutableInfoBlockManager)
    sequences = [[], []]
    grow(manager, sequences[1], 4)
    key, value = torch.rand(2, 2, 3), torch.rand(2, 2, 3)
    manager.append_token_batch(0, sequences, key, value)
    assert [manager.num_tokens(ids) for ids in sequences] == [1, 5]
    for b, ids in enumerate(sequences):
        keys, values = manager.dense_kv(0, ids)
        assert torch.equal(keys[:, -1], key[b]) and torch.equal(values[:, -1], value[b])


def test_one_table_serves_all_layers():
    tables = [helpers.make_manager(kind) for kind in (MutableInfoBlockManager, OneTableBlockManager)]
    assert [manager.num_tables for manager in tables] == [2, 1]
    assert [manager.layers_of(0) for manager in tables] == [0, slice(None)]
    manager, block_ids = tables[1], []
    keys = torch.rand(2, 2, 5, 3)  # [L, H, T, D]
    manager.append_prompt(0, block_ids, keys, keys + 1)
    assert len(block_ids) == 2
    for layer_idx in range(2):
        cached_keys, cached_values = manager.dense_kv(layer_idx, block_ids)
        assert torch.equal(cached_keys, keys[layer_idx]) and torch.equal(cached_values, keys[layer_idx] + 1)


def test_a_copy_in_one_table_copies_every_layer():
    manager, block_ids = helpers.make_manager(OneTableBlockManager), []
    keys = torch.rand(2, 2, 3, 3)
    manager.append_prompt(0, block_ids, keys, keys + 1)
    sharer = manager.share(block_ids)
    manager.reserve_token_batch(0, [sharer])
    for layer_idx in range(2):
        assert torch.equal(manager.dense_kv(layer_idx, sharer)[0][:, :3], keys[layer_idx])
