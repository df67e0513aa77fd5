"""Lesson 12: a sampler that is wrong without an error, and where that shows."""

from collections.abc import Mapping
from typing import Any

import torch

from labkit.engine import InferenceEngine, SamplingParams
from labkit.kernels import draw_plain


def draws_by_row(*arguments: Any) -> None:
    """Takes row b's parameters from slot b. They are the row's own until a request leaves."""
    logits, token_ids, slot_mapping, last_token_ids, *others = arguments
    rows = torch.arange(len(slot_mapping), device=logits.device)
    draw_plain(logits, token_ids, rows, last_token_ids, *others)
    last_token_ids[slot_mapping] = token_ids.clamp(min=0)


def last_of(engine: InferenceEngine, asked: Mapping[str, SamplingParams]) -> tuple[int, ...]:
    """The tokens of the last of several requests, by prompt, that begin together."""
    return engine.generate(list(asked), list(asked.values()))[-1].token_ids


def last_alone(engine: InferenceEngine, asked: Mapping[str, SamplingParams]) -> tuple[int, ...]:
    """The tokens of the last of them when it has the engine to itself."""
    *_, last = asked.items()
    return last_of(engine, dict([last]))
