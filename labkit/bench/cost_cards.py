"""What one decode step does, counted while it runs. No clock: the same on every run of a kind of machine."""

import inspect
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FrameType

import pandas as pd
import torch
from torch.profiler import profile

from labkit.bench.limit import synchronize
from labkit.bench.profile import activities_of
from labkit.bench.record import load_records
from labkit.bench.workload import difference
from labkit.engine import InferenceEngine
from labkit.kvcache import (
    KVBlockInfo,
    KVBlockManager,
    MutableInfoBlockManager,
    MutableKVBlockInfo,
    OneTableBlockManager,
)
from labkit.options import EngineOptions
from labkit.watch import OperatorCounter, profiled_by, steady_decode

STEADY_TOKENS = 16  # more than a card's steps take, and few enough to stay within a block


@dataclass(frozen=True)
class HostCounts:
    """What the host does in one step."""

    manager_calls: int  # calls into the KVBlockManager from outside it
    kv_block_infos: int  # records of blocks created, of either kind
    aten_ops: int  # PyTorch operators dispatched
    index_tensors: int  # integer tensors made from Python numbers
    kv_bytes_written: int  # of new keys and values, in the pool


@dataclass(frozen=True)
class DeviceCounts:
    """What the GPU is asked for in one step. `source` says where that was counted."""

    kernels: int
    h2d_copies: int  # host to device
    h2d_bytes: int
    h2d_synchronizing: int  # of the copies, those from pageable memory: the host waits for each
    d2h_copies: int  # device to host
    synchronizations: int  # calls in which the host waits for the GPU, those of copies included
    source: str


@dataclass(frozen=True)
class CostCard:
    """One steady decode step of `batch_size` requests. device: None where nothing is known of a GPU."""

    batch_size: int
    append_paths: dict[str, int]
    host: HostCounts
    device: DeviceCounts | None

    def column(self) -> dict[str, int | str]:
        rows = dict(zip(HOST_ROWS, counts_of(self.host), strict=True))
        if self.device is not None:
            rows |= zip(DEVICE_ROWS, counts_of(self.device), strict=True)
        return rows

    @property
    def caption(self) -> str:
        """Where the GPU's rows come from."""
        return f"GPU rows: {self.device.source}" if self.device else "GPU rows: none recorded"

    def table(self) -> pd.DataFrame:
        """Counts, a row each."""
        return pd.DataFrame({"one step": self.column()}).rename_axis(columns=self.caption)

    def to_dict(self) -> dict:
        return asdict(self)


HOST_ROWS = (
    "calls into KVBlockManager",
    "KVBlockInfo objects created",
    "aten operators dispatched",
    "index tensors constructed",
    "bytes of K/V written",
)
DEVICE_ROWS = (
    "GPU: kernels launched",
    "GPU: host-to-device copies",
    "GPU: host-to-device bytes",
    "GPU: of the copies, synchronizing",
    "GPU: device-to-host copies",
    "GPU: the host waits for the GPU",
)


def counts_of(counts: HostCounts | DeviceCounts) -> list[int]:
    return [value for value in asdict(counts).values() if isinstance(value, int)]


def compare_cards(before: CostCard, after: CostCard) -> pd.DataFrame:
    """Before, after, and what went, row by row."""
    table = pd.DataFrame({"before": before.column(), "after": after.column()}).dropna().astype(int)
    table["change"] = table["after"] - table["before"]
    return table.rename_axis(columns=after.caption)


def cost_card(engine: InferenceEngine, prompts: Sequence[Sequence[int]]) -> CostCard:
    """Count a steady step of these prompts, several times over: one step for each way of counting.

    Without a GPU, the device's counts are those recorded on one for the same model, options and prompts.
    Raises ValueError if the steps differ, because one of them meets a block boundary.
    """
    with steady_decode(engine, prompts, max_new_tokens=STEADY_TOKENS):
        paths, (calls, infos) = with_paths(engine, count_calls)
        counted = [with_paths(engine, count) for count in (count_operators, count_kv_bytes)]
        if engine.device.type == "cuda":
            counted.append(with_paths(engine, count_on_device))
    if any(others != paths for others, _ in counted):
        raise ValueError(f"the steps of a card must be alike, but took {paths} and {[p for p, _ in counted]}")
    (_, (ops, index_tensors)), (_, kv_bytes), *on_device = counted
    device = on_device[0][1] if on_device else recorded_device_counts(engine, prompts)
    return CostCard(len(prompts), paths, HostCounts(calls, infos, ops, index_tensors, kv_bytes), device)


def with_paths(
    engine: InferenceEngine, count: Callable[[InferenceEngine], object]
) -> tuple[dict[str, int], object]:
    before = engine.stats().append_paths
    counted = count(engine)
    return difference(before, engine.stats().append_paths), counted


# --- ways of counting: each runs one step --------------------------------------------------------------


def count_calls(engine: InferenceEngine) -> tuple[int, int]:
    """Calls into the manager from outside it, and records created, as the interpreter reports its calls."""
    managers = (KVBlockManager, MutableInfoBlockManager, OneTableBlockManager)
    methods = {code for manager in managers for code in codes_of(manager)}
    inside = {inspect.getsourcefile(manager) for manager in managers}
    constructors = {KVBlockInfo.__new__.__code__, MutableKVBlockInfo.__init__.__code__}
    calls = infos = 0

    def on_event(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls, infos
        if event != "call":
            return
        calls += frame.f_code in methods and frame.f_back.f_code.co_filename not in inside
        infos += frame.f_code in constructors

    with profiled_by(on_event):
        engine.step()
    return calls, infos


def codes_of(cls: type) -> set[CodeType]:
    """The code of a class's methods and properties."""
    members = [m.fget if isinstance(m, property) else m for m in vars(cls).values()]
    return {m.__code__ for m in members if inspect.isfunction(m)}


def count_operators(engine: InferenceEngine) -> tuple[int, int]:
    with OperatorCounter() as counter:
        engine.step()
    return counter.operators, counter.index_tensors


def count_kv_bytes(engine: InferenceEngine) -> int:
    """Slots that hold no token are filled with NaN before the step; what is a number then, was written."""
    manager = engine.kv_manager
    free = ~manager.live_slots()[:, :, None, :, None]  # [L, N, 1, block_size, 1]
    caches = (manager.k_cache, manager.v_cache)
    for cache in caches:
        cache.masked_fill_(free, torch.nan)
    engine.step()
    return sum(int((free & ~cache.isnan()).sum()) * cache.element_size() for cache in caches)


def count_on_device(engine: InferenceEngine) -> DeviceCounts:
    with profile(activities=activities_of(engine.device), acc_events=True) as profiler:
        engine.step()
        synchronize(engine.device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_text())
    return read_device_counts(trace["traceEvents"], torch.cuda.get_device_name(engine.device))


def read_device_counts(events: Sequence[dict], device: str) -> DeviceCounts:
    """Count a step's Chrome trace that ends with a synchronization of its own, which is not the step's."""
    h2d = [e for e in events if e.get("cat") == "gpu_memcpy" and "HtoD" in e["name"]]
    d2h = [e for e in events if e.get("cat") == "gpu_memcpy" and "DtoH" in e["name"]]
    waits = [e for e in events if e.get("cat") == "cuda_runtime" and "Synchronize" in e["name"]]
    of_the_step = [e for e in waits if e["name"] != "cudaDeviceSynchronize"]
    return DeviceCounts(
        kernels=sum(e.get("cat") == "kernel" for e in events),
        h2d_copies=len(h2d),
        h2d_bytes=sum(e["args"]["bytes"] for e in h2d),
        h2d_synchronizing=sum("Pageable" in e["name"] for e in h2d),
        d2h_copies=len(d2h),
        synchronizations=len(of_the_step),
        source=f"counted on {device}",
    )


# --- recorded cards ------------------------------------------------------------------------------------


def card_key(model: str, options: EngineOptions, block_size: int, prompt_lens: Sequence[int]) -> dict:
    """What a card's counts depend on, beside the kind of machine."""
    return {
        "model": model,
        "options": asdict(options),
        "block_size": block_size,
        "prompt_lens": list(prompt_lens),
    }


def engine_key(engine: InferenceEngine, prompts: Sequence[Sequence[int]]) -> dict:
    lengths = [len(prompt) for prompt in prompts]
    return card_key(engine.model.name, engine.options, engine.kv_manager.block_size, lengths)


def recorded_device_counts(engine: InferenceEngine, prompts: Sequence[Sequence[int]]) -> DeviceCounts | None:
    """The counts of the same step from a record; the newest, if there are several; None if there is none."""
    key = engine_key(engine, prompts)
    for record in sorted(load_records("cost_card").values(), key=lambda r: r["date"], reverse=True):
        for sample in record["samples"]:
            if is_key(sample["key"], key) and sample["card"]["device"] is not None:
                counts = sample["card"]["device"]
                return DeviceCounts(**{**counts, "source": f"recorded, {counts['source']}"})
    return None


def is_key(recorded: dict, key: dict) -> bool:
    """Whether they are the same; a record that is older than an option has its default."""
    options = asdict(EngineOptions(**recorded["options"]))
    return {**recorded, "options": options} == key
