"""Lesson 09: what was recorded of both rungs, steps timed in turn, and shares of attention."""

from collections.abc import Mapping, Sequence
from statistics import median

import pandas as pd

from labkit.bench import in_turn, time_decode_steps
from labkit.engine import InferenceEngine
from labkit.kernels.split_attention import TOKENS_AT_A_TIME
from labkit.results import Comparison, DeviceTimeRecord, TracedStep
from labkit.results.kernels import ATTENTION, PRODUCTS, SPLIT_K_SUMS, group_us, slowest_single
from labkit.watch import steady_decode


def share_of_small_ones(step: TracedStep) -> float:
    """The share of a step's GPU time in kernels that are neither a matrix product nor attention."""
    us = group_us(step)
    return 1 - (us[PRODUCTS] + us[ATTENTION]) / sum(us.values())


def parts_of(step: TracedStep) -> dict[str, float]:
    """Microseconds of a step by what they are for, the output layer apart."""
    us, head = group_us(step), slowest_single(step).us
    layers = us[PRODUCTS] + us[SPLIT_K_SUMS] - head
    rest = sum(us.values()) - layers - head - us[ATTENTION]
    return {"layers' products": layers, "output layer": head, "attention": us[ATTENTION], "the rest": rest}


def gain_table(record: DeviceTimeRecord) -> pd.DataFrame:
    """`parts_of` both rungs' steps, a column per batch size."""
    busy, busy_after = (record.gpu_busy_us(rung) for rung in ("08", "09"))
    columns = {}
    for size in sorted(busy):
        before, after = (parts_of(record.step(rung, size)) for rung in ("08", "09"))
        column = columns[f"B = {size}"] = {}
        for part in before:
            column[f"{part}, 08"], column[f"{part}, 09"] = round(before[part]), round(after[part])
        column["GPU busy, 08 over 09"] = round(busy[size] / busy_after[size], 2)
    return pd.DataFrame(columns).map("{:g}".format).rename_axis("microseconds, rung")


NUM_STEPS = 24  # of a run


def compare_steps(
    engines: Mapping[str, InferenceEngine], prompts: Sequence[Sequence[int]], rounds: int = 5
) -> dict[str, Comparison]:
    """How much faster than the first engine's each other's decode step is; the runs were made in turn."""

    def run(engine: InferenceEngine) -> float:
        with steady_decode(engine, prompts):
            return median(time_decode_steps(engine, NUM_STEPS))

    runs = in_turn([lambda e=e: run(e) for e in engines.values()], rounds)
    (before, first), *others = zip(engines, map(tuple, runs), strict=True)
    return {name: Comparison(before, name, first, after, {}, {}) for name, after in others}


def pieces_of(
    context_len: int, splits: int, by_turns: bool, max_tokens: int = 1024
) -> list[tuple[int, int, int]]:
    """The pieces in which one request's tokens are read: (first token, number of tokens, program) each.

    by_turns: a program takes every splits-th piece, as the kernel does; else it has a contiguous share of the
    longest context that there can be.
    """
    pieces = []
    for first in range(0, context_len, TOKENS_AT_A_TIME):
        program = first // TOKENS_AT_A_TIME % splits if by_turns else first // -(-max_tokens // splits)
        pieces.append((first, min(TOKENS_AT_A_TIME, context_len - first), program))
    return pieces
