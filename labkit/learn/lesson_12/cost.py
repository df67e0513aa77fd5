"""Lesson 12: what a sampler and a search cost, counted and timed, and how often each token is drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor
from torch._ops import OpOverload

from labkit.bench import in_turn
from labkit.bench.limit import synchronized_seconds
from labkit.engine.step.samplers import DrawFunction
from labkit.kernels import draw_plain, draw_triton, triton_status
from labkit.kernels.distribution import warp
from labkit.learn.lesson_12.samplers import Batch, Row, draw_sorted
from labkit.learn.measured import BELOW, PACKAGE, YOURS, Measured
from labkit.watch.operators import OperatorMode, tensors_of

# --- what a sampler costs for logits of GPT-2's vocabulary: counted on any machine, and timed ----------

VOCAB_SIZE = 50257
BATCH_SIZE = 4  # of samplers that are timed
MANNERS: dict[str, tuple[float, int, float]] = {  # temperature, top-k, top-p
    "temperature 0.8": (0.8, 0, 1.0),
    "top-k 40": (0.8, 40, 1.0),
    "top-p 0.95": (0.8, 0, 0.95),
    "both": (0.8, 40, 0.95),
}
GREEDY = (0.0, 0, 1.0)


def large_batch(
    manner: str, batch_size: int, device: torch.device | str = "cpu", drawing: int | None = None
) -> Batch:
    """Random logits [batch_size, VOCAB_SIZE]; the first `drawing` rows draw in this manner, or all do."""
    drawing = batch_size if drawing is None else drawing
    rows = [Row((0.0, 1.0), *(MANNERS[manner] if b < drawing else GREEDY)) for b in range(batch_size)]
    logits = 3 * torch.randn(batch_size, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    return replace(Batch.of(rows, device), logits=logits.to(device))


class Traffic(OperatorMode):
    """Sorts that are dispatched, and bytes that operators read of tensors of `least` values or more."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least = least
        self.sorts = self.num_bytes = 0

    def on_operator(self, func: OpOverload, args: tuple, kwargs: dict, out: object) -> None:
        self.sorts += func.overloadpacket.__name__ == "sort"
        read = tensors_of((args, kwargs))
        self.num_bytes += sum(tensor.nbytes for tensor in read if tensor.numel() >= self.least)


def traffic(draw: DrawFunction, batch: Batch) -> Traffic:
    """What a sampler asks PyTorch for."""
    with Traffic(batch.logits.numel()) as seen:
        batch.give(draw)
    return seen


def traffic_table(draws: Mapping[str, DrawFunction], batch_size: int = 2) -> pd.DataFrame:
    """A row per manner, all rows of the batch drawing: sorts, and megabytes read per row."""
    rows = {}
    for manner in MANNERS:
        seen = {name: traffic(draw, large_batch(manner, batch_size)) for name, draw in draws.items()}
        rows[manner] = {
            **{f"sorts: {name}": of.sorts for name, of in seen.items()},
            **{f"MB per row: {name}": f"{of.num_bytes / batch_size / 1e6:.1f}" for name, of in seen.items()},
        }
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.columns = pd.MultiIndex.from_tuples([tuple(name.split(": ")) for name in table.columns])
    return table


def measure(
    mine: DrawFunction, manner: str, rounds: int, device: torch.device, drawing: int = BATCH_SIZE
) -> Measured:
    """Time the rung below, the reader's sampler and the package's (a kernel where one runs on a GPU) in turn,
    each after a call that is not timed."""
    batch = large_batch(manner, BATCH_SIZE, device, drawing)
    on_gpu = device.type == "cuda" and triton_status().mode == "native"
    draws = {BELOW: draw_sorted, YOURS: mine, PACKAGE: draw_triton if on_gpu else draw_plain}
    for draw in draws.values():
        batch.give(draw)
    runs = [
        lambda draw=draw: synchronized_seconds(lambda: batch.give(draw), device) for draw in draws.values()
    ]
    return Measured(BATCH_SIZE, dict(zip(draws, in_turn(runs, rounds), strict=True)))


def sorts_in_words(draw: DrawFunction) -> str:
    """How often a sampler sorts in a step, with filters and without: what each build step brings down."""
    counts = {manner: traffic(draw, large_batch(manner, 1)).sorts for manner in ("both", "temperature 0.8")}
    return f"sorts in a step: {counts['both']} with top-k and top-p, {counts['temperature 0.8']} without"


# --- the guesses of a search, one after another, and how many it takes ---------------------------------

FLOAT32, FLOAT16 = 32, 16  # bits
GUESSES_EACH = 3  # that the kernel asks for in one pass


class Guess(NamedTuple):
    """A number that a search tried, and how many keys are not above it."""

    key: int
    num_up_to: int


def guesses(keys: Sequence[int], limit: int) -> list[Guess]:
    """What a search by halvings tries until it has the smallest key with more than `limit` keys up to it."""
    below, high = min(keys) - 1, max(keys)
    tried = []
    while high - below > 1:
        middle = (below + high) // 2
        tried.append(Guess(middle, sum(key <= middle for key in keys)))
        below, high = (below, middle) if tried[-1].num_up_to > limit else (middle, high)
    return tried


def rounds(width: int, guesses_each: int = 1) -> int:
    """Rounds until a search has one of `width` numbers left, with so many guesses in each, at most."""
    count = 0
    while width > 1:
        width = -(-width // (guesses_each + 1))
        count += 1
    return count


def passes(bits: int, top_k: bool, top_p: bool) -> int:
    """How often the kernel reads a row of numbers of so many bits, at most: for each cut the rounds of a
    search, for top-p the sum of all weights, and once to pick a token (and then a chunk of the row again)."""
    search = rounds(2**bits, GUESSES_EACH)
    return search * top_k + (1 + search) * top_p + 1


# --- whether tokens are drawn as often as they should be -------------------------------------------------

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
