"""transformers' `generate`: the same work, with either cache and with a padded vocabulary."""

import pytest
import torch
from peer_workloads import RAGGED, expected, workload

from labkit import load_model
from labkit.bench.parity import transformers_model
from labkit.bench.peers import generate

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("padded", [False, True])
def test_it_makes_the_same_tokens(cache, padded):
    """Prompts of differing length, in two batches."""
    work = workload()
    reference = generate.as_transformers(work.model)
    if padded:
        reference = generate.with_padded_vocabulary(reference)
    with generate.quiet_transformers():
        run = generate.generate_peer(work, reference, cache)()
    assert run.token_ids == expected(work)
    assert run.tokens == 12 and 0 < run.first_token_seconds < run.seconds


def test_a_padded_head_gives_the_logits_of_the_tokens_alone():
    weight, hidden = torch.randn(67, 8), torch.randn(2, 3, 8)
    head = generate.PaddedHead(weight)
    assert head.weight.shape == (128, 8) and not head.weight.requires_grad
    torch.testing.assert_close(head(hidden), hidden @ weight.T)
    assert generate.PaddedHead(torch.randn(64, 8)).weight.shape == (64, 8)


def test_the_converted_model_is_what_transformers_loads_itself():
    model = load_model("data/tiny-gpt2")
    ours, theirs = generate.as_transformers(model).state_dict(), transformers_model(model).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_pads_stand_before_a_prompt():
    ids, mask = generate.left_padded(RAGGED, torch.device("cpu"))
    assert ids.tolist() == [[5, 6, 7, 8, 9], [0, 0, 0, 0, 10], [0, 0, 0, 11, 12]]
    assert mask.tolist() == [[1] * 5, [0, 0, 0, 0, 1], [0, 0, 0, 1, 1]]
