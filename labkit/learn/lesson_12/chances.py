"""Lesson 12: whether tokens are drawn as often as they should be."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from labkit.engine.step.samplers import DrawFunction
from labkit.kernels import draw_plain
from labkit.kernels.distribution import warp
from labkit.learn.lesson_12.cases import Batch, Row
from labkit.learn.lesson_12.cost import MANNERS

FEWEST = 5  # expected draws of a token that is counted by itself
NORMAL = 3.0902  # standard deviations of a normal number that one in 1,000 is above


def judged(draw: DrawFunction, manner: str, num_draws: int = 20_000, vocab_size: int = 200) -> str:
    """Draw from one row again and again, and say in words whether the counts are as expected."""
    row = Row((0.0, 1.0), *MANNERS[manner])
    small = Batch.of((row,) * num_draws)
    logits = 3 * torch.randn(1, vocab_size, generator=torch.Generator().manual_seed(1))
    batch = replace(small, logits=logits.expand(num_draws, vocab_size).contiguous())
    batch.give(draw)
    shares = warp(logits, batch.of_rows.at(slice(1)))[0].double()
    counts = torch.bincount(batch.token_ids, minlength=vocab_size).double()
    statistic, degrees = chi_square(counts, num_draws * shares)
    part = 2 / (9 * degrees)
    # What one statistic in 1,000 is above, if all is right (Wilson and Hilferty, 1931).
    limit = degrees * (1 - part + NORMAL * part**0.5) ** 3
    verdict = "as expected" if statistic <= limit else "not as expected"
    return (
        f"{manner}: {int((shares > 0).sum())} tokens, {degrees} degrees, "
        f"chi-square {statistic:.1f}, limit {limit:.1f}: {verdict}"
    )


def chi_square(counts: Tensor, expected: Tensor) -> tuple[float, int]:
    """The statistic of counts, and its degrees of freedom. Tokens that are expected seldom are counted as
    one; a count of a token that is never expected makes it infinite."""
    if (counts[expected == 0] > 0).any():
        return float("inf"), int((expected > 0).sum()) - 1
    is_seldom = expected < FEWEST
    observed = torch.cat([counts[~is_seldom], counts[is_seldom].sum()[None]])
    wanted = torch.cat([expected[~is_seldom], expected[is_seldom].sum()[None]])
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    return float(((observed - wanted) ** 2 / wanted).sum()), len(wanted) - 1


def one_too_many(*arguments: Any) -> None:
    """Cuts top-k one token too late."""
    *tensors, state, is_filtered = arguments
    late = state._replace(top_ks=state.top_ks + (state.top_ks > 0).long())
    draw_plain(*tensors, late, is_filtered)
