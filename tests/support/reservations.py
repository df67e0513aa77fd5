"""Sessions with a prompt, and room for one more token of each."""

import pytest
from helpers import kv_numbers

from labkit.engine import InferenceSession
from labkit.kvcache import MutableInfoBlockManager, OneTableBlockManager

kinds = pytest.mark.parametrize("kind", [MutableInfoBlockManager, OneTableBlockManager])


def prompted(manager, first, num_tokens):
    session = InferenceSession(manager)
    session.append_prompt(*kv_numbers(manager, first, num_tokens))
    return session


def reserve(*sessions):
    """Room for one more token behind each; which lists changed, in each table. Nobody counts it yet."""
    manager = sessions[0].kv_manager
    return [
        manager.reserve_token_batch(i, [s.block_ids_per_layer[i] for s in sessions])
        for i in range(manager.num_tables)
    ]


def count(*sessions):
    for session in sessions:
        session.num_tokens += 1
