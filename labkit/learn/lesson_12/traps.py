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


def last_of(engine: InferenceEngine, asked: Mapping[str, SamplingParams]) -> tuple[int, ...]:
    """The tokens of the last of several requests, by prompt, that begin together."""
    return engine.generate(list(asked), list(asked.values()))[-1].token_ids


def last_alone(engine: InferenceEngine, asked: Mapping[str, SamplingParams]) -> tuple[int, ...]:
    """The tokens of the last of them when it has the engine to itself."""
    *_, last = asked.items()
    return last_of(engine, dict([last]))
