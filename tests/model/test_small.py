"""The model for tests: every token depends on all before it, however long the text."""

import pytest
import torch

from labkit.model.small import small_model


@pytest.mark.parametrize("length", [3, 60])
def test_each_token_of_a_prompt_changes_what_comes_next(length):
    network = small_model().network
    prompt = torch.arange(length).repeat(length + 1, 1)
    prompt[torch.arange(length), torch.arange(length)] += 100  # each row but the last has another token
    logits = network.prefill(prompt, torch.full((length + 1,), length)).last_logits
    differences = (logits[:-1] - logits[-1]).abs().amax(dim=1)
    assert differences.min() > 1e-3


def test_the_seed_and_the_length_are_what_was_asked_for():
    model, same, other = small_model(), small_model(), small_model(seed=1)
    assert model.config.max_positions == 64 and small_model(1216).config.max_positions == 1216
    assert torch.equal(model.network.lm_head.weight, same.network.lm_head.weight)
    assert not torch.equal(model.network.lm_head.weight, other.network.lm_head.weight)
    assert model.has_random_weights and model.tokenizer.eos_token_id is None
