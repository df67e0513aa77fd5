"""Lesson 12: cuts by a search and by a sort, and samplers to compare the reader's with.

B rows, V vocabulary. A score is a logit less the row's largest, divided by the row's temperature.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from labkit.engine import InferenceEngine, SamplingParams
from labkit.engine.sampling import sample_any
from labkit.kernels import SamplingState, draw_plain
from labkit.kernels.sampling import kept_by_top_k, kept_by_top_p


def package_cut(scores: Tensor, top_ks: Tensor, top_ps: Tensor) -> Tensor:
    """The scores with -inf where top-k, or then top-p, drops the token: the package's searches."""
    return package_top_p(scores.masked_fill(~kept_by_top_k(scores, top_ks), -torch.inf), top_ps)


def package_top_p(scores: Tensor, top_ps: Tensor) -> Tensor:
    """The scores with -inf where top-p drops the token: the package's search."""
    return scores.masked_fill(~kept_by_top_p(scores, top_ps), -torch.inf)


def crossing_by_sort(keys: Tensor, weights: Tensor, limits: Tensor) -> Tensor:
    """In each row the smallest key at which the weight of all keys up to it is above the limit: by a sort.

    The row's largest key if there is none. keys: [B, V] int64. weights: [B, V] float64. limits: [B].
    """
    in_order, order = keys.sort(dim=-1)
    cumulated = weights.gather(1, order).cumsum(dim=-1)
    num_under = (cumulated.float() <= limits[:, None]).sum(dim=-1)
    return in_order.gather(1, num_under.clamp(max=keys.shape[-1] - 1)[:, None])[:, 0]


def top_p_by_sort(scores: Tensor, top_ps: Tensor) -> Tensor:
    """The scores with -inf where top-p drops the token: by a sort, as on the rung below."""
    ascending, order = scores.sort(dim=-1, stable=True)
    tail = ascending.softmax(dim=-1).cumsum(dim=-1)
    dropped = (tail <= (1 - top_ps).float()[:, None]) & (top_ps < 1)[:, None]
    dropped[:, -1] = False
    return scores.masked_fill(dropped.scatter(1, order, dropped), -torch.inf)


def draw_sorted(
    logits: Tensor,
    token_ids: Tensor,
    slot_mapping: Tensor,
    last_token_ids: Tensor,
    state: SamplingState,
    is_filtered: bool,
) -> None:
    """The rung below, called as a sampler is: every row is sorted twice, even if it does not draw."""
    of_rows = state.at(slot_mapping)
    token_ids.copy_(sample_any(logits, of_rows))
    last_token_ids[slot_mapping] = token_ids.clamp(min=0)
    state.draws[slot_mapping] = of_rows.draws + 1


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
