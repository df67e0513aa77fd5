"""Lesson 05: ways to count one token, the work of an append, and what it costs."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import median
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch

from labkit.bench import in_turn
from labkit.bench.cost_cards import constructors_of
from labkit.kvcache import KVBlockInfo, KVBlockManager, MutableKVBlockInfo
from labkit.learn.gates.gate import raised
from labkit.results import HostTime, speedup, speedup_interval
from labkit.watch import profiled_by, replaced

# --- ways to count up: each takes the records by id, and the ids of those that get a token ----------------


def replace_by_keywords(infos: dict[int, KVBlockInfo], ids: Sequence[int]) -> None:
    """A new record, its fields by name, stored under the block's id."""
    for i in ids:
        info = infos[i]
        infos[i] = KVBlockInfo(
            layer=info.layer, block_index=info.block_index, start=info.start, length=info.length + 1
        )


def replace_by_position(infos: dict[int, KVBlockInfo], ids: Sequence[int]) -> None:
    """A new record, its fields in order, stored under the block's id."""
    for i in ids:
        layer, block_index, start, length = infos[i]
        infos[i] = KVBlockInfo(layer, block_index, start, length + 1)


def replace_tuple(infos: dict[int, tuple[int, int, int, int]], ids: Sequence[int]) -> None:
    """A new tuple of numbers without names, stored under the block's id."""
    for i in ids:
        layer, block_index, start, length = infos[i]
        infos[i] = (layer, block_index, start, length + 1)


def count_looked_up(infos: dict[int, MutableKVBlockInfo], ids: Sequence[int]) -> None:
    """In place, in the record looked up by the block's id."""
    for i in ids:
        infos[i].length += 1


def count_at_hand(infos: dict[int, MutableKVBlockInfo], _: Sequence[int]) -> None:
    """In place, in the records at hand."""
    for info in infos.values():
        info.length += 1


def count_in_an_array(lengths: np.ndarray, ids: Sequence[int]) -> None:
    """In place, all at once, in an array that holds the lengths of all blocks."""
    lengths[ids] += 1


NUM_BLOCKS, NUM_TOKENS = 128, 64  # so many tokens are counted in each of so many blocks
# What counts, and what makes a record, if there are any.
FORMS: dict[str, tuple[Callable, Callable | None]] = {
    "a new record, by keywords (rung 04)": (replace_by_keywords, KVBlockInfo),
    "a new record, by position": (replace_by_position, KVBlockInfo),
    "a new plain tuple": (replace_tuple, lambda *numbers: numbers),
    "in place, looked up by id": (count_looked_up, MutableKVBlockInfo),
    "in place, at hand (rung 05)": (count_at_hand, MutableKVBlockInfo),
    "in place, one NumPy array": (count_in_an_array, None),
}


def time_form(count_up: Callable, make: Callable | None) -> float:
    """Seconds to count one token in one block, a mean over NUM_TOKENS in each of NUM_BLOCKS blocks."""
    ids = list(range(NUM_BLOCKS))
    infos: Any = {i: make(0, i, 0, 0) for i in ids} if make else np.zeros(NUM_BLOCKS, dtype=np.int64)
    started = time.perf_counter()
    for _ in range(NUM_TOKENS):
        count_up(infos, ids)
    return (time.perf_counter() - started) / (NUM_BLOCKS * NUM_TOKENS)


def time_forms(rounds: int = 25) -> pd.DataFrame:
    """A row per form of counting, all timed in turn: the median nanoseconds per token, and how many times as
    fast as the first it is."""
    measures = [lambda form=form: time_form(*form) for form in FORMS.values()]
    in_turn(measures, 1)  # warm-up: the interpreter adapts to code that runs often
    first, *others = sides = in_turn(measures, rounds)
    return pd.DataFrame(
        {
            "ns per token": [round(1e9 * median(side)) for side in sides],
            "times as fast": [1.0, *(round(speedup(first, side), 1) for side in others)],
            "interval": ["", *(str(speedup_interval(first, side)) for side in others)],
        },
        index=pd.Index(FORMS, name="128 tokens counted, one in each of 128 blocks"),
    )


# --- what counting one token asks of Python, counted while it runs -------------------------------------

INLINED = ("<listcomp>", "<dictcomp>", "<setcomp>")  # calls up to Python 3.11, and none from 3.12 on


# A K/V write that writes nothing, so that only the manager's bookkeeping is seen.
NO_WRITE = SimpleNamespace(write=lambda *_: "none")


def tiny_manager(kind: type[KVBlockManager], **settings: object) -> KVBlockManager:
    """A manager of one layer and one head of one number, so that a token's key is a number; with two blocks
    of 4 tokens unless `settings` says otherwise."""
    sizes = {"num_layers": 1, "num_heads": 1, "head_dim": 1, "block_size": 4, "max_blocks_per_layer": 2}
    return kind(**{**sizes, **settings})


def append(manager: KVBlockManager, sequences: Sequence[list[int]], number: float = 0.0) -> None:
    """Append one token behind each sequence; its key and its value are `number`."""
    new = torch.full((len(sequences), 1, 1), number)
    manager.append_token_batch(0, list(sequences), new, new)


def calls_of(function: Callable, *args: object) -> Counter[CodeType]:
    """How often each Python function is called while this one runs, itself among them."""
    called: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name not in INLINED:
            called[frame.f_code] += 1

    with profiled_by(note):
        function(*args)
    return called


def records_in(called: Counter[CodeType], manager: KVBlockManager) -> int:
    """How many of these calls made a record."""
    return sum(called[code] for code in constructors_of(manager))


class CountedDict(dict):
    """A dictionary that counts how often an item is read, and notes which are written."""

    reads = 0

    def __init__(self, items: dict) -> None:
        super().__init__(items)
        self.written: list[int] = []

    def __getitem__(self, key: int) -> object:
        self.reads += 1
        return super().__getitem__(key)

    def get(self, key: int, default: object = None) -> object:
        """The item, or `default`; counted as a read."""
        self.reads += 1
        return super().get(key, default)

    def __setitem__(self, key: int, value: object) -> None:
        self.written.append(key)
        super().__setitem__(key, value)


def work_of(kind: type[KVBlockManager], batch_size: int = 64) -> str:
    """What one `append_token_batch` of `batch_size` tokens asks of Python, in a line: records, calls of
    functions, reads and writes of the table of records. Every block has room, and the write itself is left
    out. It never raises, because the manager may be a reader's."""
    noun = f"an append of {batch_size} tokens"
    try:
        manager = tiny_manager(kind, max_blocks_per_layer=batch_size, kv_write=NO_WRITE)
        sequences: list[list[int]] = [[] for _ in range(batch_size)]
        append(manager, sequences)
        new = torch.zeros(batch_size, 1, 1)
        called = calls_of(manager.append_token_batch, 0, sequences, new, new)
        with replaced(manager, "block_infos", CountedDict) as table:
            manager.append_token_batch(0, sequences, new, new)
    except Exception as error:  # whatever the reader's code raises
        return f"{noun}: not counted, because it {raised(error)}"
    return (
        f"{noun}: {records_in(called, manager)} records, {called.total()} calls, {table.reads} reads of the "
        f"table, {len(table.written)} writes to it"
    )


def block_life(kind: type[KVBlockManager], num_tokens: int = 64) -> list[int]:
    """Fill one block of `num_tokens` tokens; how many records were made by then, after each token."""
    manager = tiny_manager(kind, block_size=num_tokens, kv_write=NO_WRITE)
    block_ids: list[int] = []
    made = [records_in(calls_of(append, manager, [block_ids]), manager) for _ in range(num_tokens)]
    return list(accumulate(made))


# --- host time by the parts of a step ------------------------------------------------------------------


def step_parts(host: HostTime) -> dict[str, float]:
    """Median microseconds of a step's parts on the host: block tables, append, and the rest."""
    return {"block tables": host.tables_us, "append": host.append_us, "the rest": host.rest_us}


def append_line(times: Sequence[HostTime]) -> tuple[float, float]:
    """The append's microseconds per step as a line in the batch size: (fixed, per request)."""
    sizes = [time.batch_size for time in times]
    per_request, fixed = np.polyfit(sizes, [time.append_us for time in times], 1)
    return float(fixed), float(per_request)
