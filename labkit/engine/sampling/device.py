"""Sampling that stays on the device: the tokens of the host's `sample`, bit for bit, as a tensor.

Parameters are tensors with a number for each row, and nothing here looks at a number to decide what
runs next: no value is read back and no row is picked out. So a CUDA graph can hold a sampler, and the
host can leave the tokens where they are.

A row whose logits are not finite numbers gets NO_TOKEN, and changes no other row.
"""

import torch
from torch import Tensor

from labkit.kernels.decode_ends import NO_TOKEN  # where the host's `sample` says None
from labkit.kernels.distribution import likeliest, pick, uniform_numbers, warp


def sample_greedy(logits: Tensor) -> Tensor:
    """The likeliest token [B] int64 of each row of logits [B, V]; NO_TOKEN where they are not finite."""
    token_ids, is_finite = likeliest(logits)
    return token_ids.masked_fill(~is_finite, NO_TOKEN)


def sample_any(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    seeds: Tensor,
    indices: Tensor,
) -> Tensor:
    """One token [B] int64 for each row of logits [B, V]: drawn, or the likeliest where temperature is 0.

    temperature: [B] float64. top_k: [B] int64, 0 for off. top_p: [B] float64, 1 for off. All three as
    SamplingParams holds them (`warp_tensors` makes them); None for off in every row.
    seeds, indices: [B] int64, the stream of each row and the place in it of the number that decides.
    """
    drawn = pick(warp(logits, temperature, top_k, top_p), uniform_numbers(seeds, indices))
    likeliest_ids, is_finite = likeliest(logits)
    return torch.where(temperature == 0, likeliest_ids, drawn).masked_fill(~is_finite, NO_TOKEN)
