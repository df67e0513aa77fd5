"""Sampling that stays on the device: the tokens of the host's `sample`, bit for bit, as a tensor.

Parameters are tensors with a number for each row, and nothing here looks at a number to decide what
runs next: no value is read back and no row is picked out. So a CUDA graph can hold a sampler, and the
host can leave the tokens where they are.

A row whose logits are not finite numbers gets NO_TOKEN, and changes no other row.
"""

import torch
from torch import Tensor

from labkit.kernels.decode_ends import NO_TOKEN  # where the host's `sample` says None
from labkit.kernels.distribution import SamplingState, likeliest, pick, uniform_numbers, warp


def sample_greedy(logits: Tensor) -> Tensor:
    """The likeliest token [B] int64 of each row of logits [B, V]; NO_TOKEN where they are not finite."""
    token_ids, is_finite = likeliest(logits)
    return token_ids.masked_fill(~is_finite, NO_TOKEN)


def sample_any(logits: Tensor, state: SamplingState) -> Tensor:
    """One token [B] int64 for each row of logits [B, V]: drawn, or the likeliest where temperature is 0.

    state: of the rows, as `warp` takes it.
    """
    drawn = pick(warp(logits, state), uniform_numbers(state.seeds, state.draws))
    likeliest_ids, is_finite = likeliest(logits)
    return torch.where(state.temperatures == 0, likeliest_ids, drawn).masked_fill(~is_finite, NO_TOKEN)
