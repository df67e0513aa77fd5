"""Lesson 12: what a sampler and a search cost, counted and timed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pandas as pd
import torch
from torch._ops import OpOverload

from labkit.bench import in_turn
from labkit.bench.limit import synchronized_seconds
from labkit.engine.step.samplers import DrawFunction
from labkit.kernels import draw_plain, draw_triton, triton_status
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
            **{("sorts", name): of.sorts for name, of in seen.items()},
            **{("MB per row", name): f"{of.num_bytes / batch_size / 1e6:.1f}" for name, of in seen.items()},
        }
    return pd.DataFrame(rows).T


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
