"""Lesson 12: where a row of scores is cut, by sorting it as the rung below does, and what a cut leaves.

B rows, V vocabulary. A score is a logit less the row's largest, divided by the row's temperature.
"""

import torch
from torch import Tensor

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
