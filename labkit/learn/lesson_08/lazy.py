"""Lesson 08: the trap, graphs that are captured in the middle of serving."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from labkit.engine import CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.graphed import WARMUP_RUNS, batch_buckets
from labkit.model import LanguageModel
from labkit.options import EngineOptions
from labkit.watch import device_step_of


class Met(NamedTuple):
    """A step that `LazyGraphs` ran, and whether it had to capture a graph for it."""

    batch_size: int
    columns: int  # of the block table that it needs
    reason: str  # why it captures: "" if it need not, "size" or "table"


class LazyGraphs:
    """Stands for a `DeviceStep` with graphs as the public engine had them: one for each exact batch size,
    captured when the size is first met; all are dropped when the block table grows. It only counts what it
    would capture."""

    def __init__(self, device_step: DeviceStep) -> None:
        self.device_step = device_step
        self.met: list[Met] = []
        self._graphs: set[tuple[int, bool]] = set()
        self._dropped: set[tuple[int, bool]] = set()
        self._columns = 1

    def __call__(self, batch_size: int, max_context_len: int, is_greedy: bool) -> Tensor:
        columns = max_context_len // self.device_step.attention.kv_manager.block_size + 1
        if columns > self._columns:
            self._dropped |= self._graphs
            self._graphs.clear()
            self._columns = columns
        key, reason = (batch_size, is_greedy), ""
        if key not in self._graphs:
            reason = "table" if key in self._dropped else "size"
            self._graphs.add(key)
        self.met.append(Met(batch_size, self._columns, reason))
        return self.device_step(batch_size, max_context_len, is_greedy)


def lazy_captures(
    model: LanguageModel, options: EngineOptions, device: torch.device, num_steps: int = 150
) -> list[Met]:
    """Serve requests that come and go, the same ones in each call, with `LazyGraphs`. Returns its steps."""
    engine = InferenceEngine(
        model,
        options,
        device=device,
        cache=CacheConfig(block_size=16, prefix_cache=False),
        scheduler=SchedulerConfig(max_batch_size=12, decode_first=True),
    )
    engine.decode_step.device_step = lazy = LazyGraphs(device_step_of(engine))
    random = Random(8)
    for i in range(num_steps):
        if i < 0.75 * num_steps and random.random() < 0.25:
            prompt = [5] * random.randint(3, 20)
            params = SamplingParams(max_new_tokens=random.randint(8, 60), stop_on_eos=False)
            engine.add_request(prompt, params)
        engine.step()
    return lazy.met


def lazy_benchmark(
    model: LanguageModel, options: EngineOptions, device: torch.device, runs: int = 2
) -> list[int]:
    """How many captures `LazyGraphs` makes in each run of a benchmark: equal requests, served to the end."""
    engine = InferenceEngine(
        model,
        options,
        device=device,
        cache=CacheConfig(block_size=16, prefix_cache=False),
        scheduler=SchedulerConfig(max_batch_size=12, prefill_max_batch_size=12),
    )
    engine.decode_step.device_step = lazy = LazyGraphs(device_step_of(engine))
    captures = []
    for _ in range(runs):
        lazy.met.clear()
        engine.generate([[5] * 7] * 12, SamplingParams(max_new_tokens=40, stop_on_eos=False))
        captures.append(sum(bool(step.reason) for step in lazy.met))
    return captures


def capture_costs(met: Sequence[Met], max_batch_size: int) -> pd.DataFrame:
    """How many captures there are, before serving and during it, and how often a step is run for those during
    it; a row for each time to capture."""
    captured = sum(bool(step.reason) for step in met)
    at_start = 2 * len(batch_buckets(max_batch_size))
    runs = WARMUP_RUNS + 1
    rows = {
        "when a size is met": {"captures before serving": 0, "captures while serving": captured},
        "at start-up, in buckets": {"captures before serving": at_start, "captures while serving": 0},
    }
    table = pd.DataFrame.from_dict(rows, orient="index")
    table["steps served"] = len(met)
    table["runs of the step for captures, while serving"] = runs * table["captures while serving"]
    return table
