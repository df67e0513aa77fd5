"""Lesson 12: what a sampler is given, cuts by a search and by a sort, and samplers to compare with.

B rows, V vocabulary. A score is a logit less the row's largest, divided by the row's temperature.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from labkit.engine.sampling import sample_any, sample_greedy
from labkit.engine.step.samplers import DrawFunction
from labkit.kernels import SamplingState, draw_plain
from labkit.kernels.distribution import uniform_numbers
from labkit.kernels.sampling import kept_by_top_k, kept_by_top_p

NOBODYS = (1.0, 1, 0.5, 0.5, 1, 3)  # what a slot without a row would draw with


class Row(NamedTuple):
    """A request's logits, and how its token is picked. temperature 0: it does not draw."""

    logits: tuple[float, ...]
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __str__(self) -> str:
        filters = f"temperature {self.temperature:g}, top-k {self.top_k}, top-p {self.top_p:g}"
        shown = ", ".join(f"{logit:.3g}" for logit in self.logits[:8])
        return f"{filters}, logits {shown}{', …' if len(self.logits) > 8 else ''}"


@dataclass(frozen=True)
class Batch:
    """Arguments of a sampler, as the engine hands them over. Slots are more than rows, in another order."""

    rows: tuple[Row, ...]
    logits: Tensor
    token_ids: Tensor
    slot_mapping: Tensor
    last_token_ids: Tensor
    state: SamplingState
    is_filtered: bool

    @classmethod
    def of(cls, rows: Sequence[Row], device: torch.device | str = "cpu") -> "Batch":
        """Rows of one vocabulary; each has a seed of its own, and has drawn some numbers."""
        logits = torch.tensor([row.logits for row in rows], device=device)
        slots = torch.arange(len(rows), 0, -1, device=device)  # the first and the last have no row
        last_token_ids = torch.zeros(len(rows) + 2, dtype=torch.int64, device=device)
        draw_with = [
            (row.temperature, row.top_k, row.top_p, 0.0, 7919 * i - 99, i % 5) for i, row in enumerate(rows)
        ]
        columns = zip(NOBODYS, *draw_with[::-1], NOBODYS, strict=True)
        state = SamplingState(*(torch.from_numpy(np.array(column)).to(device) for column in columns))
        is_filtered = any(row.temperature > 0 and (row.top_k > 0 or row.top_p < 1) for row in rows)
        return cls(tuple(rows), logits, sample_greedy(logits), slots, last_token_ids, state, is_filtered)

    @property
    def of_rows(self) -> SamplingState:
        """What each row draws with: tensors [B]."""
        return self.state.at(self.slot_mapping)

    @property
    def numbers(self) -> Tensor:
        """The random number of each row, [B]."""
        return uniform_numbers(self.of_rows.seeds, self.of_rows.draws)

    def drawn(self) -> Tensor:
        """The tokens [B] that the package draws."""
        batch = deepcopy(self)
        batch.give(draw_plain)
        return batch.token_ids

    def give(self, draw: DrawFunction) -> None:
        """Let a sampler draw: tokens, last tokens and draws change in place."""
        draw(
            self.logits, self.token_ids, self.slot_mapping, self.last_token_ids, self.state, self.is_filtered
        )


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
