"""Lesson 12: whether tokens are drawn as often as they should be, and when rounding moves a cut."""

import torch
from torch import Tensor

from labkit.engine.sampling import warp
from labkit.engine.step.samplers import DrawFunction
from labkit.kernels import SamplingState, draw_plain
from labkit.kernels.sampling import crossing, kept_by_top_p, ordered
from labkit.learn.lesson_12.cases import Batch, Row
from labkit.learn.lesson_12.cost import MANNERS
from labkit.learn.lesson_12.cuts import scaled, top_p_by_sort

FEWEST = 5  # expected draws of a token that is counted by itself
NORMAL = 3.0902  # standard deviations of a normal number that one in 1,000 is above
TOP_P = 0.95


def random_logits(num_rows: int, vocab_size: int) -> Tensor:
    """Random logits [num_rows, vocab_size], the same each time."""
    return 3 * torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(1))


# --- rounding --------------------------------------------------------------------------------------------


def rows_that_differ(num_rows: int, vocab_size: int) -> dict[str, int]:
    """Of how many random rows a search keeps other tokens by top-p than a sort does, by how it adds."""
    scores = scaled(random_logits(num_rows, vocab_size), torch.full((num_rows,), 0.8, dtype=torch.float64))
    top_ps = torch.full((num_rows,), TOP_P, dtype=torch.float64)
    by_sort = top_p_by_sort(scores, top_ps).isfinite()
    keys = ordered(scores) * vocab_size + torch.arange(vocab_size)
    in_float32 = crossing(keys, scores.softmax(dim=-1), (1 - top_ps).float())
    kept = {
        "float64 sums": kept_by_top_p(scores, top_ps),
        "float32 sums": keys >= in_float32[:, None],
    }
    return {name: int((mask != by_sort).any(dim=-1).sum()) for name, mask in kept.items()}


# --- frequencies -----------------------------------------------------------------------------------------


def tested(draw: DrawFunction, manner: str, num_draws: int = 20_000, vocab_size: int = 200) -> str:
    """Draw from one row again and again, and say in words whether the counts are as expected."""
    row = Row((0.0, 1.0), *MANNERS[manner])
    small = Batch.of((row,) * num_draws, row.is_filtered, "cpu")
    logits = random_logits(1, vocab_size)
    batch = Batch(**{**vars(small), "logits": logits.expand(num_draws, vocab_size).contiguous()})
    batch.give(draw)
    of_row = [column[:1] for column in batch.of_rows]
    shares = warp(logits, *of_row[:3])[0].double()
    counts = torch.bincount(batch.token_ids, minlength=vocab_size).double()
    statistic, degrees = chi_square(counts, num_draws * shares)
    limit = limit_of(degrees)
    verdict = "as expected" if statistic <= limit else "not as expected"
    return (
        f"{manner}: {int((shares > 0).sum())} tokens, chi-square {statistic:.1f} "
        f"with {degrees} degrees of freedom, limit {limit:.1f}: {verdict}"
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


def limit_of(degrees: int) -> float:
    """What one statistic in 1,000 is above, if all is right (Wilson and Hilferty, 1931)."""
    part = 2 / (9 * degrees)
    return degrees * (1 - part + NORMAL * part**0.5) ** 3


def one_too_many(
    logits: Tensor,
    token_ids: Tensor,
    slot_mapping: Tensor,
    last_token_ids: Tensor,
    state: SamplingState,
    is_filtered: bool,
) -> None:
    """Cuts top-k one token too late."""
    late = state._replace(top_ks=state.top_ks + (state.top_ks > 0).long())
    draw_plain(logits, token_ids, slot_mapping, last_token_ids, late, is_filtered)
