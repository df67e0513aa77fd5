"""Prompts into the cache, padded to the longest: one that cannot be stored leaves all as they were."""

import pytest
import torch
from helpers import make_manager, small_model

from labkit.engine import InferenceSession
from labkit.engine.prefill import prefill_sessions

CPU = torch.device("cpu")
PROMPTS = [(1, 2, 3, 4, 5, 6), (7, 8), (9, 10, 11, 12, 13)]


def sessions_for(prompts, **settings):
    """Empty sessions in one pool of the small model's shape."""
    manager = make_manager(num_heads=2, head_dim=8, max_blocks_per_layer=16, **settings)
    return [InferenceSession(manager) for _ in prompts]


def test_a_prefill_that_fails_leaves_every_session_as_it_was(monkeypatch):
    network = small_model().network
    sessions = sessions_for(PROMPTS)
    prefill_sessions(network, sessions[:1], [PROMPTS[0][:4]])
    held, free = sessions[0].dense_kv(), sessions[0].kv_manager.num_free_blocks
    append_prompt = InferenceSession.append_prompt

    def fails_for_the_last(session, keys, values):
        if session is sessions[2]:
            raise ZeroDivisionError
        append_prompt(session, keys, values)

    monkeypatch.setattr(InferenceSession, "append_prompt", fails_for_the_last)
    with pytest.raises(ZeroDivisionError):
        prefill_sessions(network, sessions, PROMPTS)
    assert [session.num_tokens for session in sessions] == [4, 0, 0]
    assert sessions[0].kv_manager.num_free_blocks == free
    assert all(map(torch.equal, sessions[0].dense_kv(), held))
