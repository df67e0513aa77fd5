"""Lesson 05: ways to count one token, each timed; and what a record weighs."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from labkit.bench import in_turn
from labkit.kvcache import KVBlockInfo, MutableKVBlockInfo
from labkit.results import speedup, speedup_interval

# --- ways to count up: each takes all records there are, and the ids of those that get a token ---------


def replace_by_keywords(infos: dict[int, KVBlockInfo], ids: list[int]) -> None:
    """A new record, its fields by name, stored under the block's id."""
    for i in ids:
        info = infos[i]
        infos[i] = KVBlockInfo(
            layer=info.layer, block_index=info.block_index, start=info.start, length=info.length + 1
        )


def replace_by_position(infos: dict[int, KVBlockInfo], ids: list[int]) -> None:
    """A new record, its fields in order, stored under the block's id."""
    for i in ids:
        layer, block_index, start, length = infos[i]
        infos[i] = KVBlockInfo(layer, block_index, start, length + 1)


def replace_tuple(infos: dict[int, tuple[int, int, int, int]], ids: list[int]) -> None:
    """A new tuple of numbers without names, stored under the block's id."""
    for i in ids:
        layer, block_index, start, length = infos[i]
        infos[i] = (layer, block_index, start, length + 1)


def count_looked_up(infos: dict[int, MutableKVBlockInfo], ids: list[int]) -> None:
    """In place, in the record looked up by the block's id."""
    for i in ids:
        infos[i].length += 1


def count_at_hand(infos: list[Any], _: list[int]) -> None:
    """In place, in the records at hand."""
    for info in infos:
        info.length += 1


def count_in_an_array(lengths: np.ndarray, ids: list[int]) -> None:
    """In place, all at once, in an array that holds the lengths of all blocks."""
    lengths[ids] += 1


def by_id(make: Callable[[int, int, int, int], Any], num_blocks: int) -> dict[int, Any]:
    """A table of records of empty blocks."""
    return {i: make(0, i, 0, 0) for i in range(num_blocks)}


# What makes the records of some empty blocks, and what counts a token in each.
Form = tuple[Callable[[int], Any], Callable[[Any, list[int]], None]]
FORMS: dict[str, Form] = {
    "a new record, by keywords (rung 04)": (partial(by_id, KVBlockInfo), replace_by_keywords),
    "a new record, by position": (partial(by_id, KVBlockInfo), replace_by_position),
    "a new plain tuple": (partial(by_id, lambda *numbers: numbers), replace_tuple),
    "in place, looked up by id": (partial(by_id, MutableKVBlockInfo), count_looked_up),
    "in place, at hand (rung 05)": (
        lambda num_blocks: [MutableKVBlockInfo(0, i, 0, 0) for i in range(num_blocks)],
        count_at_hand,
    ),
    "in place, one NumPy array": (partial(np.zeros, dtype=np.int64), count_in_an_array),
}


def time_form(form: Form, num_blocks: int = 128, num_tokens: int = 64) -> float:
    """Seconds to count one token in one block, as a mean over `num_tokens` in each of `num_blocks` blocks."""
    make, count_up = form
    infos, ids = make(num_blocks), list(range(num_blocks))
    started = time.perf_counter()
    for _ in range(num_tokens):
        count_up(infos, ids)
    return (time.perf_counter() - started) / (num_blocks * num_tokens)


def time_forms(forms: Mapping[str, Form] = FORMS, rounds: int = 25) -> pd.DataFrame:
    """A row per form of counting, all timed in turn: the median nanoseconds per token, and how many times as
    fast as the first it is."""
    measures = [lambda form=form: time_form(form) for form in forms.values()]
    in_turn(measures, 1)  # warm-up: the interpreter adapts to code that runs often
    first, *others = sides = in_turn(measures, rounds)
    return pd.DataFrame(
        {
            "ns per token": [round(1e9 * median(side)) for side in sides],
            "times as fast": [1.0, *(round(speedup(first, side), 1) for side in others)],
            "interval": ["", *(str(speedup_interval(first, side)) for side in others)],
        },
        index=pd.Index(forms, name="128 tokens counted, one in each of 128 blocks"),
    )
