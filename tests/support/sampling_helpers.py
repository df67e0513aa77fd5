"""Logits and parameters for the tests of sampling."""

import torch
from torch import Tensor

from labkit import SamplingParams
from labkit.engine.sampling import warped_probabilities


def random_logits(*shape: int, scale: float = 3.0, seed: int = 0, device: str = "cpu") -> Tensor:
    like = torch.Generator(device).manual_seed(seed)
    return scale * torch.randn(*shape, generator=like, device=device)


LAST_UNIFORM = 1 - 2**-53  # the largest number below 1 that a float64 can be


def logits_of(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities]).log()


def sampled(**kwargs: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0} | kwargs)


def kept(logits: Tensor, **kwargs: object) -> list[int]:
    """The tokens of one row that can still be drawn."""
    return warped_probabilities(logits, [sampled(**kwargs)])[0].nonzero()[:, 0].tolist()
