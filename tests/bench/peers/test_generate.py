"""transformers' `generate`: the same work, with either cache and with a padded vocabulary."""

import pytest
import torch
from peer_workloads import expected, workload

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
