"""Lesson 05: what a record costs, what counting in place can break, the recorded runs, and the exercises."""

import random
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from statistics import median
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from labkit.bench import host_engine, in_turn, time_host_steps
from labkit.engine import InferenceEngine, InferenceSession
from labkit.errors import OutOfBlocksError
from labkit.kvcache import KVBlockInfo, KVBlockManager, MutableInfoBlockManager, MutableKVBlockInfo
from labkit.kvcache.block_manager import NO_BLOCK
from labkit.learn.answers import plain
from labkit.learn.exercise import Case, Exercise
from labkit.options import EngineOptions
from labkit.results import (
    Comparison,
    HostTime,
    HostTimeRecord,
    Run,
    RunsRecord,
    amdahl,
    speedup,
    speedup_interval,
)
from labkit.watch import PlantedError, planted_failure, profiled_by, replaced

# --- what counting one token costs Python ----------------------------------------------------------------


class NoWrite:
    """A K/V write that writes nothing, so that only the manager's bookkeeping is seen."""

    def write(self, *_: object) -> str:
        """Write nothing; the path is "none"."""
        return "none"


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
    """Counts the Python functions that are called, and the records made among them."""

    CONSTRUCTORS = (KVBlockInfo.__new__.__code__, MutableKVBlockInfo.__init__.__code__)

    def __init__(self) -> None:
        self.functions = self.records = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self.functions += 1
            self.records += frame.f_code in self.CONSTRUCTORS


class CountedDict(dict):
    """A dictionary that counts how often an item is read and written."""

    reads = writes = 0

    def __getitem__(self, key: int) -> object:
        self.reads += 1
        return super().__getitem__(key)

    def get(self, key: int, default: object = None) -> object:
        """The item, or `default`; counted as a read."""
        self.reads += 1
        return super().get(key, default)

    def __setitem__(self, key: int, value: object) -> None:
        self.writes += 1
        super().__setitem__(key, value)


def append_work(kind: type[KVBlockManager], batch_size: int) -> dict[str, int]:
    """What one `append_token_batch` of `batch_size` tokens asks of Python, by name: records, function calls,
    reads and writes of the records. Every block has room, and the write itself is left out."""
    manager = tiny_manager(kind, max_blocks_per_layer=batch_size, kv_write=NoWrite())
    sequences: list[list[int]] = [[] for _ in range(batch_size)]
    append(manager, sequences)
    new = torch.zeros(batch_size, 1, 1)
    counter = CallCounter()
    with profiled_by(counter):
        manager.append_token_batch(0, sequences, new, new)
    with replaced(manager, "block_infos", CountedDict) as counted:
        manager.append_token_batch(0, sequences, new, new)
    return {
        "KVBlockInfo objects created": counter.records,
        "Python functions called": counter.functions,
        "reads of the dictionary of records": counted.reads,
        "writes to the dictionary of records": counted.writes,
    }


@dataclass(frozen=True)
class BlockLife:
    """What records say of one block as it fills, token by token, to a holder that keeps each record it is
    shown."""

    created: tuple[int, ...]  # records made so far, after each token
    shown: tuple[int, ...]  # the length that the record said at the time
    kept: tuple[int, ...]  # what the same records say at the end


def block_life(kind: type[KVBlockManager], num_tokens: int = 64) -> BlockLife:
    """Fill one block of `num_tokens` tokens, and keep each record that describes it."""
    manager = tiny_manager(kind, block_size=num_tokens, kv_write=NoWrite())
    block_ids: list[int] = []
    created, shown, records = [], [], []
    counter = CallCounter()
    for _ in range(num_tokens):
        with profiled_by(counter):
            append(manager, [block_ids])
        created.append(counter.records)
        records.append(manager.info(block_ids[0]))
        shown.append(records[-1].length)
    return BlockLife(tuple(created), tuple(shown), tuple(record.length for record in records))


# --- where the time goes: five ways to count up ----------------------------------------------------------


class PlainKVBlockInfo:
    """A mutable record without slots, as one writes it first: its fields are kept in a dictionary."""

    def __init__(self, layer: int, block_index: int, start: int, length: int) -> None:
        self.layer = layer
        self.block_index = block_index
        self.start = start
        self.length = length


Record = KVBlockInfo | MutableKVBlockInfo | PlainKVBlockInfo
CountUp = Callable[[dict[int, Record], list[int], list[Record]], None]


def replace_and_store(infos: dict[int, KVBlockInfo], ids: list[int], _: list[KVBlockInfo]) -> None:
    """Count one token in each block: a new record, stored under the block's id."""
    for i in ids:
        info = infos[i]
        infos[i] = KVBlockInfo(
            layer=info.layer, block_index=info.block_index, start=info.start, length=info.length + 1
        )


def replace_only(infos: dict[int, KVBlockInfo], ids: list[int], _: list[KVBlockInfo]) -> None:
    """Count one token in each block: a new record, not stored."""
    for i in ids:
        info = infos[i]
        KVBlockInfo(layer=info.layer, block_index=info.block_index, start=info.start, length=info.length + 1)


def count_looked_up(infos: dict[int, MutableKVBlockInfo], ids: list[int], _: list[Record]) -> None:
    """Count one token in each block: in place, in the record looked up by the block's id."""
    for i in ids:
        infos[i].length += 1


def count_in_place(_: dict[int, Record], __: list[int], records: list[Record]) -> None:
    """Count one token in each block: in place, in the record at hand."""
    for info in records:
        info.length += 1


# Ways to count one token up: the class of the records, and the function that counts.
FORMS: dict[str, tuple[type[Record], CountUp]] = {
    "new record, stored (rung 04)": (KVBlockInfo, replace_and_store),
    "new record, not stored": (KVBlockInfo, replace_only),
    "in place, looked up by id": (MutableKVBlockInfo, count_looked_up),
    "in place, class without slots": (PlainKVBlockInfo, count_in_place),
    "in place, slots (rung 05)": (MutableKVBlockInfo, count_in_place),
}


def time_form(kind: type[Record], count_up: CountUp, num_blocks: int = 128, num_tokens: int = 64) -> float:
    """Seconds to count one token in one block, as a mean over `num_tokens` in each of `num_blocks` blocks."""
    records = [kind(layer=0, block_index=i, start=0, length=0) for i in range(num_blocks)]
    infos, ids = dict(enumerate(records)), list(range(num_blocks))
    started = time.perf_counter()
    for _ in range(num_tokens):
        count_up(infos, ids, records)
    return (time.perf_counter() - started) / (num_blocks * num_tokens)


def time_forms(rounds: int = 25) -> pd.DataFrame:
    """A row per form of counting, all timed in turn: the median nanoseconds per token, and how many times
    faster it is than the first."""
    measures = [lambda form=form: time_form(*form) for form in FORMS.values()]
    in_turn(measures, 1)  # warm-up: the interpreter adapts to code that runs often
    first, *others = sides = in_turn(measures, rounds)
    ratios = [1.0, *(speedup(first, side) for side in others)]
    intervals = ["", *(str(speedup_interval(first, side)) for side in others)]
    return pd.DataFrame(
        {
            "ns a token": [round(1e9 * median(side)) for side in sides],
            "times faster": np.round(ratios, 2),
            "interval": intervals,
        },
        index=list(FORMS),
    )


def bytes_of_a_record(kind: type[Record], count: int = 1000) -> int:
    """Bytes that one record takes, with what it keeps its fields in."""
    records: list[Record | None] = [None] * count
    tracemalloc.start()
    try:
        for i in range(count):
            records[i] = kind(0, 0, 0, 0)
        return round(tracemalloc.get_traced_memory()[0] / count)
    finally:
        tracemalloc.stop()


# --- counted before the write, or after it ----------------------------------------------------------------


class CountsBeforeTheWrite(MutableInfoBlockManager):
    """A manager that counts a length up while it collects, before the write, as write-up 064 does; for
    demonstration."""

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        infos, refcounts = self.block_infos, self.block_refcounts
        last_infos, block_idx, pos = [], [], []
        num_slow = 0
        for block_ids in block_ids_list:
            last_id = block_ids[-1] if block_ids else NO_BLOCK
            info = infos.get(last_id)
            if info is None or info.length == self.block_size or refcounts[last_id] > 1:
                last_id = self.ready_block(layer_idx, block_ids)
                info = infos[last_id]
                num_slow += 1
            last_infos.append(info)
            block_idx.append(info.block_index)
            pos.append(info.length)
            info.length += 1  # before the write
        self.write_batch(layer_idx, range(len(last_infos)), block_idx, pos, key_new, value_new)
        self.append_paths["in_place"] += len(last_infos) - num_slow


def fail_an_append(kind: type[KVBlockManager], failure: str) -> dict[str, object]:
    """Let an append to two sequences of a small pool fail, and return what the manager counts after it.

    failure: "write", or "pool", in which the second sequence needs a block and none is free. Returned are the
    lengths "written" and "counted", and whether the "bookkeeping" is whole.
    """
    manager = tiny_manager(kind)
    lengths = {"write": (2, 2), "pool": (2, 4)}[failure]
    sessions = [InferenceSession(manager) for _ in lengths]
    for session, length in zip(sessions, lengths, strict=True):
        for _ in range(length):
            append(manager, session.block_ids_per_layer)
            session.num_tokens += 1
    sequences = [session.block_ids_per_layer[0] for session in sessions]
    fault = planted_failure(manager.kv_write, "write") if failure == "write" else nullcontext()
    with suppress(PlantedError, OutOfBlocksError), fault:
        append(manager, sequences)
    try:
        manager.check_integrity(sessions)
        state = "whole"
    except AssertionError:
        state = "off: a length is ahead of the data"
    counted = [manager.num_tokens(block_ids) for block_ids in sequences]
    return {"written": list(lengths), "counted": counted, "bookkeeping": state}


LEFT_BEHIND = 99.0  # what another request's token left in a slot


def stored_after_retry(kind: type[KVBlockManager]) -> list[float]:
    """The keys that a sequence reads after tokens 1 and 2, a write of 3 that fails, and 3 once more, with no
    clean-up between them."""
    manager = tiny_manager(kind)
    manager.k_cache.fill_(LEFT_BEHIND)
    block_ids: list[int] = []
    append(manager, [block_ids], 1.0)
    append(manager, [block_ids], 2.0)
    with suppress(PlantedError), planted_failure(manager.kv_write, "write"):
        append(manager, [block_ids], 3.0)
    append(manager, [block_ids], 3.0)
    return manager.dense_kv(0, block_ids)[0].flatten().tolist()


def fail_a_step(engine: InferenceEngine, at_layer: int) -> tuple[list[int], list[int]]:
    """Let the engine's next step fail where layer `at_layer` writes. Returns the tokens that the manager
    counts for the first running request, a number per layer: at the failure, and after the engine has handled
    it.

    Raises ValueError if the step does not write in that layer.
    """
    manager = engine.kv_manager
    session, *_ = engine.scheduler.running.values()

    def counted() -> list[int]:
        return [manager.num_tokens(block_ids) for block_ids in session.block_ids_per_layer]

    seen: list[list[int]] = []
    fault = planted_failure(manager.kv_write, "write", at_layer, look=lambda: seen.append(counted()))
    with suppress(PlantedError), fault:
        engine.step()
    if not seen:
        raise ValueError(f"the step did not write in layer {at_layer}")
    return seen[0], counted()


# --- host time: here, and as recorded ---------------------------------------------------------------------


def compare_host(
    before: EngineOptions,
    after: EngineOptions,
    batch_size: int,
    device: torch.device,
    rounds: int = 4,
    num_steps: int = 12,
) -> dict[str, Comparison]:
    """Two engines' host time of a whole step and of its append, measured now, in turn; a sample is the median
    step of a run."""
    engines = [host_engine(options, batch_size, device) for options in (before, after)]
    measures = [lambda e=engine: time_host_steps(e, num_steps) for engine in engines]
    in_turn(measures, 1)
    sides = in_turn(measures, rounds)

    def compared(part: str) -> Comparison:
        samples = [tuple(median(getattr(run, part)) for run in runs) for runs in sides]
        return Comparison("before", "after", *samples, {}, {})

    return {"step": compared("step_seconds"), "append": compared("append_seconds")}


def host_table(record: HostTimeRecord, before: str, after: str, batch_sizes: Sequence[int]) -> pd.DataFrame:
    """How many times faster the append and the whole step are in a record, a row per batch size."""
    rows = {}
    for b in batch_sizes:
        append, step = record.append_comparison(before, after, b), record.comparison(before, after, b)
        rows[f"B = {b}"] = {
            "append": f"×{append.speedup:.2f}",
            "append, interval": str(append.interval),
            "step": f"×{step.speedup:.2f}",
            "step, interval": str(step.interval),
            "verdict on the step": step.verdict,
        }
    return pd.DataFrame(rows).T


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
        ratio = record.append_comparison(before, after, b).speedup
        rows[f"B = {b}"] = {
            "append, share of the step": f"{share:.0%}",
            "append": f"×{ratio:.2f}",
            "step by Amdahl's law": f"×{amdahl(share, ratio):.2f}",
            "step as measured": f"×{record.comparison(before, after, b).speedup:.2f}",
            "step if the append took no time": f"×{amdahl(share, float('inf')):.2f}",
        }
    return pd.DataFrame(rows).T


def expected_end_to_end(
    runs: RunsRecord, host: HostTimeRecord, before: str, after: str
) -> dict[str, str | float]:
    """What the append saves without the model (`host`), off the step with it (`runs`)."""
    append = host.append_comparison(before, after, runs.max_batch_size)
    saved = 1e3 * (median(append.before_samples) - median(append.after_samples))
    step, measured = 1e-3 * runs.step_us(before), runs.comparison(before, after)
    return {
        f"step of rung {before} (ms)": round(step, 2),
        "saved in the append (ms)": round(saved, 2),
        "expected": f"×{step / (step - saved):.3f}",
        "measured": f"×{measured.speedup:.3f}",
        "interval": str(measured.interval),
    }


def run_figures(run: Run) -> dict[str, float]:
    """The three figures that write-up 064 states, of one recorded run."""
    return {
        "throughput": round(run.throughput, 2),
        "TPOT p99": round(1e3 * float(np.percentile(run.latency.tpot, 99)), 2),
        "ITL p99": round(float(np.percentile(run.gaps_us, 99)) / 1e3, 2),
    }


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


# --- exercises --------------------------------------------------------------------------------------------


def append_batch(infos: list[MutableKVBlockInfo], write: Callable[[list[int]], None]) -> None:
    """Write one token behind each block, all in one write, and count the tokens after it."""
    write([info.length for info in infos])
    for info in infos:
        info.length += 1


class WriteFailed(RuntimeError):
    """Raised by a write that did not happen."""


class Interrupted(BaseException):
    """Raised by a write that the reader interrupts; like KeyboardInterrupt, it is no Exception."""


# What a write can raise, by name.
FAILURES: dict[str, type[BaseException]] = {"WriteFailed": WriteFailed, "Interrupted": Interrupted}


def play_append_batch(
    attempt: Callable, starts: list[int], lengths: list[int], write_raises: str | None
) -> dict[str, Any]:
    """Call the attempt on the records of blocks with these starts and lengths, and return what it did, by
    name. `write_raises`: None for a write that works, or the name of one of FAILURES."""
    infos = [
        MutableKVBlockInfo(layer=0, block_index=i, start=start, length=length)
        for i, (start, length) in enumerate(zip(starts, lengths, strict=True))
    ]
    held_elsewhere = list(infos)
    calls: list[Any] = []

    def write(slots: Sequence[int]) -> None:
        calls.append(plain(tuple(slots) if isinstance(slots, Iterator) else slots))
        if write_raises:
            raise FAILURES[write_raises]("nothing was written")

    error = None
    try:
        attempt(infos=infos, write=write)
    except tuple(FAILURES.values()) as raised:
        error = type(raised).__name__
    return {
        "the calls of write": calls,
        "the lengths": [info.length for info in infos],
        "the lengths that another holder of the records sees": [info.length for info in held_elsewhere],
        "the rest of the records": [(info.layer, info.block_index, info.start) for info in infos],
        "the error that the caller gets": error,
    }


def draw_append_batch(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `append_batch`: up to 6 blocks of 64 tokens, some empty or nearly full, and a write
    that works or fails."""
    size = rng.randint(1, 6)
    return {
        "starts": [64 * rng.randrange(4) for _ in range(size)],
        "lengths": [rng.choice((0, 63, rng.randrange(64))) for _ in range(size)],
        "write_raises": rng.choice((None, None, *FAILURES)),
    }


def _batch(*blocks: tuple[int, int], write_raises: str | None = None) -> dict[str, Any]:
    """The arguments of a case: start and length of each block."""
    starts, lengths = map(list, zip(*blocks, strict=True))
    return {"starts": starts, "lengths": lengths, "write_raises": write_raises}


TWO = (0, 3), (0, 5)

APPEND_BATCH = Exercise(
    name="append_batch",
    cases=(
        Case(
            _batch(*TWO),
            {"the calls of write": [[3, 5]]},
            "`write` takes the slots of the whole batch at once, and a block's next slot is its length "
            "before the token is counted.",
        ),
        Case(
            _batch(*TWO),
            {"the lengths": [4, 6]},
            "When the write has succeeded, every block holds one token more.",
        ),
        Case(
            _batch(*TWO),
            {"the lengths that another holder of the records sees": [4, 6]},
            "The manager holds these records, too, and does not see a new one in your list: count in place.",
        ),
        Case(
            _batch((0, 3), (64, 5)),
            {"the calls of write": [[3, 5]]},
            "A slot is a place in a block and is counted from 0 in each: `start` says where the block "
            "begins in the text.",
        ),
        Case(
            _batch((64, 5), (0, 3)),
            {"the rest of the records": [(0, 0, 64), (0, 1, 0)]},
            "Counting a token changes its block's length, and neither the other fields (layer, block_index, "
            "start) nor the order.",
        ),
        Case(
            _batch(*TWO, write_raises="WriteFailed"),
            {"the lengths": [3, 5]},
            "Nothing was written, so nothing may be counted. Count after the write.",
        ),
        Case(
            _batch(*TWO, write_raises="WriteFailed"),
            {"the error that the caller gets": "WriteFailed"},
            "Let the error through: the engine must learn of it to undo the other layers of the step.",
        ),
        Case(
            _batch(*TWO, write_raises="WriteFailed"),
            {"the calls of write": [[3, 5]]},
            "Write once. Whether to try again is for the caller to say.",
        ),
        Case(
            _batch(*TWO, write_raises="Interrupted"),
            {"the lengths": [3, 5]},
            "Ctrl-C is no `Exception`, so `except Exception` does not undo it. What is counted after the "
            "write needs no undoing.",
        ),
        Case(
            _batch((0, 0)),
            {"the calls of write": [[0]], "the lengths": [1]},
            "An empty block's first slot is 0.",
        ),
    ),
    solution=append_batch,
    draw=draw_append_batch,
    drawn_hint="Collect the slots, write them once, and then count each block's token, in its own record.",
    play=play_append_batch,
)


def records_created(
    block_info: str, num_layers: int, in_place: int, boundary: int, copy_on_write: int
) -> int:
    """How many block records a decode step creates, by how many requests take each path of the append."""
    made_ready = boundary + copy_on_write  # each is a new block, which has a record in any case
    if block_info == "mutable":
        return num_layers * made_ready
    # One more for each token counted, and one where a copy takes over the length of what it copies.
    return num_layers * (in_place + 2 * boundary + 3 * copy_on_write)


def _step_of(block_info: str, num_layers: int, *requests: int) -> dict[str, object]:
    paths = dict(zip(("in_place", "boundary", "copy_on_write"), requests, strict=True))
    return {"block_info": block_info, "num_layers": num_layers, **paths}


def draw_records_created(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `records_created`: a kind of record, a number of layers, and how many requests take
    each path."""
    requests = [rng.choice((0, 1, rng.randint(2, 64))) for _ in range(3)]
    return _step_of(rng.choice(("replaced", "mutable")), rng.choice((1, 2, 12, 48)), *requests)


RECORDS_CREATED = Exercise(
    name="records_created",
    cases=(
        Case(
            _step_of("replaced", 12, 64, 0, 0),
            768,
            "Counting a token replaces its block's record, in each layer.",
        ),
        Case(
            _step_of("mutable", 12, 64, 0, 0),
            0,
            "A mutable record counts in place: no path but a new block needs a new record.",
        ),
        Case(
            _step_of("mutable", 12, 60, 4, 0),
            48,
            "A new block has a record of its own, mutable or not.",
        ),
        Case(
            _step_of("replaced", 12, 60, 4, 0),
            816,
            "At a boundary a new block gets a record that says 0 tokens, and counting its first token "
            "replaces it.",
        ),
        Case(
            _step_of("mutable", 6, 0, 0, 3),
            18,
            "Copy-on-write takes a new block, so there is a new record.",
        ),
        Case(
            _step_of("replaced", 6, 0, 0, 3),
            54,
            "A copied block's record is made with 0 tokens, replaced to take over the length of the block it "
            "copies, and replaced again to count the token.",
        ),
    ),
    solution=records_created,
    draw=draw_records_created,
    drawn_hint="Add up what the requests of each path create, then take it for each layer.",
)
