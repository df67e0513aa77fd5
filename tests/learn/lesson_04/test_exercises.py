"""Lesson 04: the solution of its exercise says what the package does."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.kernels import kv_append_plain
from labkit.learn.lesson_04.exercises import slot_mapping


@given(st.data())
def test_a_slot_mapping_says_where_indexed_assignment_writes(data):
    batch_size, blocks, size = data.draw(st.integers(1, 4)), 6, 4
    written = sorted(data.draw(st.sets(st.integers(0, batch_size - 1), min_size=1)))
    block_idx = data.draw(st.permutations(range(blocks)))[: len(written)]
    pos = data.draw(st.lists(st.integers(0, size - 1), min_size=len(written), max_size=len(written)))
    k_cache, v_cache = torch.full((2, blocks, 1, size, 1), -1.0)
    rows = torch.arange(batch_size).view(batch_size, 1, 1).float()
    kv_append_plain(k_cache, v_cache, rows, rows, *map(torch.tensor, (written, block_idx, pos)))
    flat = k_cache.flatten().tolist()
    mapping = slot_mapping(written, block_idx, pos, batch_size, size)
    assert [flat[slot] if slot >= 0 else None for slot in mapping] == [
        b if b in written else None for b in range(batch_size)
    ]
