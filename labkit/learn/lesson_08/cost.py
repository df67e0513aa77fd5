"""Lesson 08: what launches cost, buckets that pad, captures made late, and the walk through a step."""

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown
from torch import Tensor

from labkit.engine import CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.graphed import WARMUP_RUNS, batch_buckets
from labkit.learn.gates.gate import raised
from labkit.model import LanguageModel
from labkit.options import EngineOptions
from labkit.results import DeviceTimeRecord, RunsRecord, StepProfile
from labkit.results.profiles import is_inside
from labkit.watch import device_step_of

# --- what graphs save, from recorded runs --------------------------------------------------------------


def forward_us(profile: StepProfile) -> tuple[float, float, int]:
    """The model's forward in a profiled step: microseconds on the host, microseconds of its kernels, and how
    many kernels."""
    (forward,) = [span for span in profile.ranges if span.name == "labkit.model.forward"]
    inside = [k for k in profile.kernels if is_inside(k, forward)]
    return forward.duration, sum(kernel.duration for kernel in inside), len(inside)


def share_replaced(ratio: float) -> float:
    """The share of the whole that was removed, if a gain of `ratio` comes only from something that takes no
    time any more."""
    return 1 - 1 / ratio


class LaunchBound(NamedTuple):
    """A model of a decode step: the microseconds that the host takes to launch it, and that the GPU takes to
    run it."""

    launch_us: float
    gpu_us: float

    @property
    def eager_us(self) -> float:
        """The step's microseconds without a graph: host and GPU work at the same time, so the slower of the
        two."""
        return max(self.launch_us, self.gpu_us)

    @property
    def gain(self) -> float:
        """The most times faster that a graph can make the step."""
        return self.eager_us / self.gpu_us


def launch_model(records: Mapping[int, RunsRecord], kernels: Mapping[int, int]) -> pd.DataFrame:
    """Kernels times the host's microseconds per kernel beside the measured steps of rung 07, a column per
    batch size.

    records: of `ladder`, by batch size; kernels: of a step. The microseconds per kernel are those of the
    smallest batch, and are held against the others.
    """
    smallest = min(records)
    launch_us = records[smallest].step_us("07") / kernels[smallest]
    rows = {}
    for batch_size, record in sorted(records.items()):
        eager = record.step_us("07")
        of_launches = launch_us * kernels[batch_size]
        rows[f"B = {batch_size}"] = {
            "kernels": kernels[batch_size],
            "kernels x us per kernel": round(of_launches),
            "rung 07, measured (us)": round(eager),
            "of it launches, by the model": f"{of_launches / eager:.0%}",
        }
    return pd.DataFrame(rows)


def gain_by_context(
    record: DeviceTimeRecord,
    launch_us: float,
    bytes_a_token: int,
    batch_sizes: Sequence[int],
    contexts: Sequence[int],
) -> pd.DataFrame:
    """The most that a graph can gain as batches and texts grow, a column per batch size and a row per number
    of cached tokens of each request.

    record: of `device-time`. The GPU's time is a line in the batch size through the two largest batches of
    rung 08; for longer texts than theirs, the time for the cache's bytes at the measured bandwidth is added.
    """
    busy = record.gpu_busy_us("08")
    (low, high), measured_at = sorted(busy)[-2:], record.samples[0].context_len
    a_request = (busy[high] - busy[low]) / (high - low)

    def gain(batch_size: int, context: int) -> str:
        more_bytes = batch_size * (context - measured_at) * bytes_a_token
        gpu_us = busy[low] + a_request * (batch_size - low) + 1e6 * more_bytes / record.bandwidth
        return f"×{LaunchBound(launch_us, gpu_us).gain:.2f}"

    rows = {c: {f"B = {b}": gain(b, c) for b in batch_sizes} for c in contexts}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("tokens in each cache")


# --- the trap, graphs that are captured in the middle of serving ---------------------------------------


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


# --- choices of buckets, and the rows of a step that are padding ---------------------------------------

MOST_GRAPHS, WORST_PADDING = (
    24,
    45,
)  # what a reader's buckets for 128 requests may cost: graphs, and % of rows


def bucket_of(batch_size: int, buckets: Sequence[int]) -> int:
    """The smallest of the buckets that the batch fits. buckets: in rising order."""
    return next(size for size in buckets if size >= batch_size)


def padded_share(batch_size: int, buckets: Sequence[int]) -> float:
    """The share of a step's rows that are padding, 0 to 1, for a batch in its bucket."""
    return 1 - batch_size / bucket_of(batch_size, buckets)


def padding_table(policies: Mapping[str, Sequence[int]], max_batch_size: int) -> pd.DataFrame:
    """What choices of buckets cost, a row per policy, by name: graphs to capture, and padding over all batch
    sizes."""
    rows = {}
    for name, buckets in policies.items():
        shares = {b: padded_share(b, buckets) for b in range(1, max_batch_size + 1)}
        worst = max(shares, key=shares.get)
        rows[name] = {
            "sizes": len(buckets),
            "graphs": 2 * len(buckets),
            "padding, mean (%)": round(100 * float(np.mean(list(shares.values()))), 1),
            "padding, worst (%)": round(100 * shares[worst], 1),
            "worst at B": worst,
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def spaced_sizes(max_batch_size: int, sizes_per_doubling: int) -> list[int]:
    """Buckets of which each is larger than the last by about the same factor, so many from a power of two to
    the next; rounded up, and `max_batch_size` itself."""
    num_steps = sizes_per_doubling * max_batch_size.bit_length()
    spaced = {math.ceil(2 ** (step / sizes_per_doubling)) for step in range(num_steps)}
    return sorted({*(size for size in spaced if size < max_batch_size), max_batch_size})


def padding_of(sizes_for: Callable[[int], Sequence[int]], max_batch_size: int = 128) -> str:
    """What a reader's choice of buckets costs, in a line: graphs, padding over all batch sizes,
    and whether that is little enough."""
    try:
        table = padding_table({"": sorted(sizes_for(max_batch_size))}, max_batch_size)
    except StopIteration:
        return f"graphs: not counted, because no size fits a batch of {max_batch_size}"
    except Exception as error:  # whatever the reader's code raises
        return f"graphs: not counted, because sizes_for {raised(error)}"
    (row,) = table.to_dict("records")
    is_small = row["graphs"] <= MOST_GRAPHS
    mean, worst = row["padding, mean (%)"], row["padding, worst (%)"]
    verdict = "right" if worst < WORST_PADDING else "too much padding"
    return (
        f"graphs: {verdict if is_small else 'too many'}. {row['graphs']} for up to {max_batch_size} "
        f"requests; padding: {mean} % of rows on average, {worst} % at worst"
    )


# --- what a capture asks of each line of a device's step -----------------------------------------------

# Lines of `DeviceStep` of which a capture asks something; a test finds each in the source.
WALK = (
    (
        "slot_mapping = slots.slot_mapping[:batch_size]",
        "A view of a tensor that is there as long as the engine is: fixed address. `batch_size` becomes part "
        "of the graph: fixed shape.",
        "06: who is in the batch lies on the device. 08: a graph per bucket",
    ),
    (
        "self.attention.begin(slots, slot_mapping, max_context_len)",
        "`max_context_len` is a number of the host's, and would be that of the capture for ever. The fused "
        "kernel does not ask for it: it loops up to the length that it finds in the slot.",
        "07: the fused kernel",
    ),
    (
        "positions = slots.context_lens[slot_mapping].clamp(min=0).long()",
        "Another number in every step, from the same address: the device counts.",
        "06: lengths on the device",
    ),
    (
        "input_ids = slots.last_token_ids[slot_mapping]",
        "The token is where the last step left it, not in a Python list. In the middle of the layers no "
        "block is taken, so none can be missing: there is room already.",
        "06: last tokens on the device, and room reserved before",
    ),
    (
        "if draws == Draws.NONE:",
        "Python's `if` is asked at the capture and never again. So there is a graph for either answer.",
        "08: two families",
    ),
    (
        "return self.advance(sample_greedy(logits), slot_mapping)",
        "No token is looked at: the sampler's answer is a tensor. The host's sampler waits for numbers.",
        "06: the device's sampler",
    ),
    (
        "slots.last_token_ids[slot_mapping] = token_ids.clamp(min=0)",
        "In place: the next replay looks for it at the same address.",
        "06: state on the device",
    ),
    (
        "slots.context_lens[slot_mapping] = torch.where(lens < 0, lens, lens + 1)",
        "`where`, not `if`: both answers are there, the device picks. A padding row (-1) stays one.",
        "07: padding rows, which the fused kernel stores nothing for",
    ),
)


def walk_through() -> Markdown:
    """A Markdown table of lines of `DeviceStep`: what a capture asks of each, and which rung provided it."""
    head = "| line of `DeviceStep` | what a capture makes of it | who saw to it |\n| --- | --- | --- |"
    return Markdown("\n".join([head, *(f"| `{line}` | {why} | {who} |" for line, why, who in WALK)]))
