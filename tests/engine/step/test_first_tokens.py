"""First tokens drawn on the device: those that the host draws."""

from dataclasses import replace

import pytest
import torch
from helpers import GREEDY, SEEDED

from labkit.engine.request import Request, sample_requests
from labkit.engine.sampling import Draws
from labkit.engine.step.chunk_layout import ChunkLayout
from labkit.engine.step.first_tokens import FirstTokenSampler
from labkit.engine.step.samplers import SearchedSampler, SortedSampler
from labkit.kernels import draw_plain
from labkit.kernels.distribution import pack_states

SAMPLERS = {"sorted": SortedSampler(), "searched": SearchedSampler(draw_plain)}
BATCHES = {
    "greedy": [GREEDY] * 3,
    "plain": [GREEDY, replace(SEEDED, top_k=0, top_p=1.0), replace(SEEDED, top_k=0, top_p=1.0, seed=9)],
    "filtered": [SEEDED, GREEDY, replace(SEEDED, seed=-5, top_k=3), replace(SEEDED, seed=2**70, top_p=0.3)],
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_warming_up_draws_in_each_way_of_the_sampler(monkeypatch, name):
    drawn = []
    sampler = FirstTokenSampler(SAMPLERS[name], ChunkLayout(2, 2), torch.device("cpu"))
    monkeypatch.setattr(sampler, "sample", lambda logits, numbers, draws: drawn.append(draws))
    sampler.warm_up(torch.zeros(2, 9), None)
    assert drawn == list(SAMPLERS[name].families)


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("num_made", [0, 3])
def test_first_tokens_are_those_of_the_host(sampler, batch, num_made):
    torch.manual_seed(num_made)
    logits = 4 * torch.randn(len(batch), 256)
    logits[1, 7] = torch.nan
    requests = [Request(i, (1, 2), params) for i, params in enumerate(batch)]
    for request in requests:
        request.output_token_ids += [5] * num_made  # preempted after so many
    layout = ChunkLayout(max_prompts=5, max_blocks=2)
    numbers = torch.zeros(layout.size(0), dtype=torch.int64)
    parts = layout.split(numbers)
    states = pack_states([request.sampling_state for request in requests])
    parts.states[:, : len(requests)] = torch.from_numpy(states)
    expected = sample_requests(requests, logits)
    made = FirstTokenSampler(sampler, layout, torch.device("cpu")).sample(logits, numbers, Draws.of(batch))
    assert made.tolist() == [-1 if token_id is None else token_id for token_id in expected]
    assert expected[1] is None
