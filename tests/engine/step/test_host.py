"""The host's decode step: a token for each session, and nothing changed where it fails."""

import pytest
import torch
from helpers import GREEDY, Boom, failing, make_engine, tokens_alone

from labkit import LADDER

PROMPTS = [(1, 2, 3), tuple(range(20, 33)), (7,), (9, 9)]
RUNGS = ["00", "02", "05"]


def running(number, params=GREEDY):
    """An engine whose requests have their first token, and the requests."""
    engine = make_engine(options=LADDER[number].options, prefix_cache=False)
    for prompt in PROMPTS:
        engine.add_request(prompt, params)
    engine.step()
    assert len(engine.scheduler.running) == len(PROMPTS)
    return engine, dict(engine.scheduler.running)


def held_by(requests):
    """Each request's tokens and bytes in the cache."""
    return [(s.num_tokens, [kv.tolist() for kv in s.dense_kv()]) for s in requests.values()]


@pytest.mark.parametrize("number", RUNGS)
@torch.inference_mode()
def test_logits_are_those_of_the_model_over_the_whole_sequence(number):
    engine, requests = running(number)
    last = [request.output_token_ids[-1] for request in requests]
    logits = engine.decode_step.decode_step_sessions(list(requests.values()), last)
    for request, row in zip(requests, logits, strict=True):
        token_ids = torch.tensor(list(request.token_ids))[None]
        expected = engine.model.network.prefill(token_ids, torch.tensor([token_ids.shape[1]]))[0]
        torch.testing.assert_close(row, expected[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("number", RUNGS)
@pytest.mark.parametrize("place", ["attention", "sample"])
@torch.inference_mode()
def test_a_step_that_fails_leaves_all_sessions_as_they_were(monkeypatch, number, place):
    """In the second layer's attention, and in the sampler, when all keys and values are appended."""
    engine, requests = running(number)
    step, before = engine.decode_step, held_by(requests)
    with monkeypatch.context() as patch:
        patch.setattr(step, place, failing(getattr(step, place), at_call=int(place == "attention")))
        with pytest.raises(Boom):
            step.next_tokens(requests)
    assert held_by(requests) == before
    engine.check_integrity()
    assert step.next_tokens(requests) == [tokens_alone(prompt, GREEDY)[1] for prompt in PROMPTS]
