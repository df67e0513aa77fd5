"""Lesson 16: quantizers that are wrong without an error."""

import torch
from torch import Tensor

from labkit.kernels.eight_bit import ZERO, quantize


def one_scale(heads: Tensor) -> tuple[Tensor, Tensor]:
    """One scale for all tokens and heads of a call: the largest value decides about all others."""
    scales = (heads.abs().max() / 127).clamp(min=2.0**-126).expand(heads.shape[:-1])
    return (heads / scales[..., None]).round().clamp(-127, 127), scales


def first_scale(heads: Tensor) -> tuple[Tensor, Tensor]:
    """The scale of the first row for all rows, be they heads or tokens: what is larger is cut off."""
    scales = (heads[..., :1, :].abs().amax(-1) / 127).clamp(min=2.0**-126).expand(heads.shape[:-1])
    return (heads / scales[..., None]).round().clamp(-127, 127), scales


def four_bits(heads: Tensor) -> tuple[Tensor, Tensor]:
    """A scale for each token and head, of whole numbers up to 7."""
    scales = (heads.abs().amax(-1) / 7).clamp(min=2.0**-126)
    return (heads / scales[..., None]).round().clamp(-7, 7), scales


def by_head(heads: Tensor) -> tuple[Tensor, Tensor]:
    """As the package does it: a scale for each token and head."""
    numbers, scales = quantize(heads, torch.uint8)
    return numbers.float() - ZERO, scales.float()


def as_it_is(heads: Tensor) -> tuple[Tensor, Tensor]:
    """Nothing is rounded."""
    return heads, torch.ones(heads.shape[:-1])
