"""A sequence's place in the cache: what it takes, shares, forgets and gives back."""

import pytest
import torch
from helpers import append_tokens, holds, kv_numbers, make_manager

from labkit.engine import InferenceSession
from labkit.kvcache import OneTableBlockManager


def session_of(num_tokens, **settings):
    """A session of so many tokens in blocks of 4."""
    session = InferenceSession(make_manager(**settings))
    session.append_prompt(*kv_numbers(session.kv_manager, 0, num_tokens))
    return session


@pytest.mark.parametrize(("kind", "num_lists"), [(None, 2), (OneTableBlockManager, 1)])
def test_a_session_has_a_list_of_blocks_per_table(kind, num_lists):
    session = session_of(6, **({} if kind is None else {"kind": kind}))
    assert [len(ids) for ids in session.block_ids_per_layer] == [2] * num_lists
    assert (session.num_tokens, session.kv_manager.num_free_blocks) == (6, 6)
    assert holds(session, (0, 6))


def test_a_fork_shares_all_blocks_until_one_of_the_two_grows():
    session = session_of(6)
    child = session.fork()
    assert child.block_ids_per_layer == session.block_ids_per_layer
    assert session.next_token_takes_block  # a copy of the shared block
    assert [child.blocks_to_reach(n) for n in (6, 7, 9)] == [0, 1, 2]
    assert [child.new_blocks_to_reach(n) for n in (6, 7, 9)] == [0, 0, 1]
    append_tokens(child, first=90)
    assert holds(session, (0, 6)) and holds(child, (0, 6), (90, 1))
    assert child.block_ids_per_layer[0][0] == session.block_ids_per_layer[0][0]
    assert child.block_ids_per_layer[0][1] != session.block_ids_per_layer[0][1]
    assert not session.next_token_takes_block  # its last block is its own again


def test_a_roll_back_cuts_to_the_tokens_counted():
    session = session_of(6)
    manager = session.kv_manager
    for _ in range(3):  # one list alone, as when a step fails between two layers
        manager.append_token(0, session.block_ids_per_layer[0], torch.zeros(2, 3), torch.zeros(2, 3))
    assert [len(ids) for ids in session.block_ids_per_layer] == [3, 2]
    session.roll_back()
    assert [manager.num_tokens(ids) for ids in session.block_ids_per_layer] == [6, 6]
    assert holds(session, (0, 6)) and manager.num_free_blocks == 6
