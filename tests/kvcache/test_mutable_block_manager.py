"""Room for a token before there is one; room for a prompt is seen by tests/engine/test_packed_prefill.py."""

import pytest
import torch
from helpers import kv_numbers, make_manager, manager_state
from hypothesis import given
from hypothesis import strategies as st
from reservations import count, prompted, reserve

from labkit.kvcache import MutableInfoBlockManager


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
