"""Lesson 12: a sampler that is wrong without an error, and where that shows."""

from collections.abc import Mapping

import torch
from torch import Tensor

from labkit.engine import InferenceEngine, SamplingParams
from labkit.kernels import SamplingState, draw_plain


def draws_by_row(
    logits: Tensor,
    token_ids: Tensor,
    slot_mapping: Tensor,
    last_token_ids: Tensor,
    state: SamplingState,
    is_filtered: bool,
) -> None:
    """Takes row b's parameters from slot b. They are the row's own until a request leaves."""
    rows = torch.arange(len(slot_mapping), device=logits.device)
    draw_plain(logits, token_ids, rows, last_token_ids, state, is_filtered)
    last_token_ids[slot_mapping] = token_ids.clamp(min=0)


def second_of_two(
    engine: InferenceEngine, prompts: Mapping[str, SamplingParams]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens of the second of two requests that begin together, and when it runs alone."""
    (_, second), params = list(prompts), list(prompts.values())
    together = engine.generate(list(prompts), params)
    (alone,) = engine.generate([second], params[1])
    return together[1].token_ids, alone.token_ids
