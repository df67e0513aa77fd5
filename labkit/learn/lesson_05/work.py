"""Lesson 05: the work of an append, what it costs, and what users wait for."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from types import CodeType, FrameType, SimpleNamespace

import numpy as np
import pandas as pd
import torch

from labkit.bench.cost_cards import constructors_of
from labkit.kvcache import KVBlockManager
from labkit.learn.gates.gate import raised
from labkit.results import HostTime, HostTimeRecord, Run, amdahl
from labkit.watch import profiled_by, replaced

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


class CallCounter:
    """Counts the Python functions that are called, and the records made among them.

    constructors: code that makes a record.
    """

    def __init__(self, constructors: set[CodeType]) -> None:
        self._constructors = constructors
        self.functions = self.records = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name not in INLINED:
            self.functions += 1
            self.records += frame.f_code in self._constructors


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


def append_work(kind: type[KVBlockManager], batch_size: int) -> dict[str, int]:
    """What one `append_token_batch` of `batch_size` tokens asks of Python, by name: records, function calls,
    reads and writes of the table of records. Every block has room, and the write itself is left out."""
    manager = tiny_manager(kind, max_blocks_per_layer=batch_size, kv_write=NO_WRITE)
    sequences: list[list[int]] = [[] for _ in range(batch_size)]
    append(manager, sequences)
    new = torch.zeros(batch_size, 1, 1)
    counter = CallCounter(constructors_of(manager))
    with profiled_by(counter):
        manager.append_token_batch(0, sequences, new, new)
    with replaced(manager, "block_infos", CountedDict) as counted:
        manager.append_token_batch(0, sequences, new, new)
    return {
        "records": counter.records,
        "calls": counter.functions,
        "reads of the table": counted.reads,
        "writes to it": len(counted.written),
    }


def work_of(kind: type[KVBlockManager], batch_size: int = 64) -> str:
    """`append_work` in a line, for a manager that may be a reader's: it never raises."""
    try:
        counts = append_work(kind, batch_size)
    except Exception as error:  # whatever the reader's code raises
        return f"an append of {batch_size} tokens: not counted, because it {raised(error)}"
    return f"an append of {batch_size} tokens: " + ", ".join(f"{n} {name}" for name, n in counts.items())


@dataclass(frozen=True)
class BlockLife:
    """What records say of one block as it fills, token by token, to a holder that keeps each record it is
    shown."""

    created: tuple[int, ...]  # records made so far, after each token
    shown: tuple[int, ...]  # the length that the record said at the time
    kept: tuple[int, ...]  # what the same records say at the end


def block_life(kind: type[KVBlockManager], num_tokens: int = 64) -> BlockLife:
    """Fill one block of `num_tokens` tokens, and keep each record that describes it."""
    manager = tiny_manager(kind, block_size=num_tokens, kv_write=NO_WRITE)
    block_ids: list[int] = []
    created, shown, records = [], [], []
    counter = CallCounter(constructors_of(manager))
    for _ in range(num_tokens):
        with profiled_by(counter):
            append(manager, [block_ids])
        created.append(counter.records)
        records.append(manager.info(block_ids[0]))
        shown.append(records[-1].length)
    return BlockLife(tuple(created), tuple(shown), tuple(record.length for record in records))


# --- host time by the parts of a step, here and as recorded, and what it makes one expect --------------


def step_parts(host: HostTime) -> dict[str, float]:
    """Median microseconds of a step's parts on the host: block tables, append, and the rest."""
    return {"block tables": host.tables_us, "append": host.append_us, "the rest": host.rest_us}


def append_line(times: Sequence[HostTime]) -> tuple[float, float]:
    """The append's microseconds per step as a line in the batch size, by least squares: (fixed, per
    request)."""
    sizes = [time.batch_size for time in times]
    per_request, fixed = np.polyfit(sizes, [time.append_us for time in times], 1)
    return float(fixed), float(per_request)


def amdahl_table(record: HostTimeRecord, before: str, after: str, batch_sizes: Sequence[int]) -> pd.DataFrame:
    """What the faster append should make of the step by Amdahl's law, and what was measured, a row per batch
    size."""
    rows = {}
    for b in batch_sizes:
        parts = step_parts(record.time(before, b))
        share = parts["append"] / sum(parts.values())
        ratio = record.comparison(before, after, b, of="append").speedup
        rows[f"B = {b}"] = {
            "append, share of the step": f"{share:.0%}",
            "append": f"×{ratio:.2f}",
            "step by Amdahl's law": f"×{amdahl(share, ratio):.2f}",
            "step as measured": f"×{record.comparison(before, after, b).speedup:.2f}",
            "step if the append took no time": f"×{amdahl(share, float('inf')):.2f}",
        }
    return pd.DataFrame(rows).T


# --- what a recorded streaming run says of throughput, of waiting, and of the queue --------------------


def queue_figures(run: Run) -> dict[str, float | str]:
    """Where the requests of a recorded run waited: medians in milliseconds, and a step's mean."""
    return {
        "TTFT p50 (ms)": round(1e3 * median(run.latency.ttft), 1),
        "of it queue wait (ms)": round(1e3 * median(run.latency.queue_wait), 1),
        "TPOT p50 (ms)": round(1e3 * median(run.latency.tpot), 2),
        "a step (ms)": round(1e-3 * run.step_us, 2),
        "requests in a step": run.decoded_tokens / run.decode_steps,
        "paths": ", ".join(run.append_paths),
    }
