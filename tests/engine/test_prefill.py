"""Prompts into the cache: together as alone, and only what is not there yet."""

import pytest
import torch
from helpers import make_manager, small_model

from labkit.engine import InferenceSession
from labkit.engine import prefill as prefill_module
from labkit.engine.prefill import past_of, prefill_sessions

CPU = torch.device("cpu")
PROMPTS = [(1, 2, 3, 4, 5, 6), (7, 8), (9, 10, 11, 12, 13)]


def sessions_for(prompts, **settings):
    """Empty sessions in one pool of the small model's shape."""
    manager = make_manager(num_heads=2, head_dim=8, max_blocks_per_layer=16, **settings)
    return [InferenceSession(manager) for _ in prompts]


def test_prompts_of_all_lengths_are_prefilled_together_as_alone():
    network = small_model().network
    together = sessions_for(PROMPTS)
    logits = prefill_sessions(network, together, PROMPTS)
    assert logits.shape == (3, 256)
    assert [session.num_tokens for session in together] == [6, 2, 5]
    for b, prompt in enumerate(PROMPTS):
        (alone,) = sessions_for([prompt])
        torch.testing.assert_close(logits[b : b + 1], prefill_sessions(network, [alone], [prompt]))
        for kv, kv_alone in zip(together[b].dense_kv(), alone.dense_kv(), strict=True):
            torch.testing.assert_close(kv, kv_alone)


def test_what_a_session_holds_is_not_computed_again():
    network = small_model().network
    whole, halves = sessions_for(PROMPTS[:1]), sessions_for(PROMPTS[:1])
    expected = prefill_sessions(network, whole, PROMPTS[:1])
    prefill_sessions(network, halves, [PROMPTS[0][:4]])
    held = halves[0].dense_kv()
    torch.testing.assert_close(prefill_sessions(network, halves, PROMPTS[:1]), expected)
    for before, now in zip(held, halves[0].dense_kv(), strict=True):
        assert torch.equal(before, now[:, :, :4])


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


def test_the_past_is_padded_to_the_longest_and_is_none_if_there_is_none(monkeypatch):
    sessions = sessions_for(PROMPTS)
    assert past_of(sessions, CPU) is None
    prefill_sessions(small_model().network, sessions[:2], PROMPTS[:2])
    past = prefill_module.past_of(sessions, CPU)
    assert past.lengths.tolist() == [6, 2, 0]
    assert past.keys.shape == past.values.shape == (2, 3, 2, 6, 8)  # [L, B, H, P, D]
    keys, values = sessions[1].dense_kv()
    assert torch.equal(past.keys[:, 1, :, :2], keys) and torch.equal(past.values[:, 1, :, :2], values)
    assert not past.keys[:, 1, :, 2:].any() and not past.keys[:, 2].any()
