"""The sampler of first tokens: each way of it is warm before it serves."""

import pytest
import torch

from labkit.engine.step.chunk_layout import ChunkLayout
from labkit.engine.step.first_tokens import FirstTokenSampler
from labkit.engine.step.samplers import SearchedSampler, SortedSampler
from labkit.kernels import draw_plain

SAMPLERS = {"sorted": SortedSampler(), "searched": SearchedSampler(draw_plain)}


@pytest.mark.parametrize("name", SAMPLERS)
def test_warming_up_draws_in_each_way_of_the_sampler(monkeypatch, name):
    drawn = []
    sampler = FirstTokenSampler(SAMPLERS[name], ChunkLayout(2, 2), torch.device("cpu"))
    monkeypatch.setattr(sampler, "sample", lambda logits, numbers, draws: drawn.append(draws))
    sampler.warm_up(torch.zeros(2, 9), None)
    assert drawn == list(SAMPLERS[name].families)
