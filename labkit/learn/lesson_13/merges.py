"""Lesson 13: results of shares put together, in the order of the row or in that of their arrival."""

import random

import torch
from torch import Tensor

NUM_ORDERS = 200


def parts_of(num_tokens: int, num_shares: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """What the programs of a row leave: of each share its largest score, its sum of weights, and its weighted
    sum of values, for random scores and values of one number."""
    generator = torch.Generator().manual_seed(13)
    scores, values = torch.randn(2, num_tokens, generator=generator)
    parts = []
    for own_scores, own_values in zip(scores.chunk(num_shares), values.chunk(num_shares), strict=True):
        weights = (own_scores - own_scores.max()).exp()
        parts.append((own_scores.max(), weights.sum(), (weights * own_values).sum()))
    return parts


def merged(parts: list[tuple[Tensor, Tensor, Tensor]]) -> float:
    """Attention of all shares together, added up in the order given, in float32."""
    largest = torch.stack([part[0] for part in parts]).max()
    total, acc = torch.zeros(()), torch.zeros(())
    for own_largest, own_total, own_acc in parts:
        weight = (own_largest - largest).exp()
        total, acc = total + weight * own_total, acc + weight * own_acc
    return (acc / total).item()


def num_results(in_order: bool, num_tokens: int = 900, num_shares: int = 15) -> int:
    """How many different numbers come out if a row's shares arrive in NUM_ORDERS random orders.

    in_order: whether the last to arrive adds them up in the order of the row.
    """
    parts, rng = parts_of(num_tokens, num_shares), random.Random(0)
    results = set()
    for _ in range(NUM_ORDERS):
        arrived = rng.sample(range(num_shares), num_shares)
        results.add(merged([parts[i] for i in (sorted(arrived) if in_order else arrived)]))
    return len(results)
