"""Lesson 08: captures that can be looked into, what stands in their way, padding, recorded figures, and the
exercises."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown
from torch import Tensor
from torch.overrides import TorchFunctionMode

from labkit.engine import CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.graphed import WARMUP_RUNS, batch_buckets
from labkit.learn.exercise import BrokenContract, Case, Exercise
from labkit.model import LanguageModel
from labkit.options import EngineOptions
from labkit.results import DeviceTimeRecord, RunsRecord, StepProfile
from labkit.results.profiles import is_inside
from labkit.watch import CapturedLaunch, ToyGraph, capture, captured_steps, device_step_of
from labkit.watch.operators import storage, tensors_of

# --- a graph that can be looked into ----------------------------------------------------------------------


class ToyGraphedStep:
    """A `GraphedStep` made of toy graphs: all of them are captured when it is made, and replayed
    afterwards."""

    def __init__(self, device_step: DeviceStep) -> None:
        self.device_step = device_step
        self.buckets = batch_buckets(len(device_step.slots.slot_mapping))
        self.graphs = {
            (bucket, is_greedy): capture(device_step, bucket, is_greedy)
            for bucket in self.buckets[::-1]
            for is_greedy in (False, True)
        }
        self.replays: list[tuple[int, int]] = []  # batch size and bucket of each step

    def __call__(self, batch_size: int, max_context_len: int, is_greedy: bool) -> Tensor:
        bucket = next(size for size in self.buckets if size >= batch_size)
        graph, token_ids = self.graphs[bucket, is_greedy]
        graph.replay()
        self.replays.append((batch_size, bucket))
        return token_ids[:batch_size]


class PaddedStep:
    """Stands for a `DeviceStep` and runs it with `bucket` rows, of which those behind the batch are
    padding."""

    def __init__(self, device_step: DeviceStep, bucket: int) -> None:
        self.device_step = device_step
        self.bucket = bucket

    def __call__(self, batch_size: int, max_context_len: int, is_greedy: bool) -> Tensor:
        return self.device_step(self.bucket, max_context_len, is_greedy)[:batch_size]


# --- what stands in the way of a capture ------------------------------------------------------------------

# Operators that the host waits for: they read a number, have a shape that depends on contents, or make a
# Python list of a tensor.
HOST_READS = (
    "aten.item",
    "aten._local_scalar_dense",
    "aten.is_nonzero",
    "aten.equal",
    "aten.nonzero",
    "aten.masked_select",
    "aten._unique2",
    "aten.resolve_neg",
)


class Obstacles(NamedTuple):
    """How one captured step differs from another, and what does not belong in a capture, as counts. All 0:
    either graph can stand for the other."""

    other_operators: int  # the sequences differ; nothing behind that is compared
    other_shapes: int  # tensors of another shape, stride or type
    other_numbers: int  # told by the host, and part of the graph
    other_addresses: int  # tensors that lie elsewhere, of those that no launch made
    host_reads: int  # launches of the first that the host waits for


def obstacles(first: ToyGraph, second: ToyGraph) -> Obstacles:
    """Why the first captured step could not be replayed in place of the second."""
    names = [[launch.name for launch in graph.launches] for graph in (first, second)]
    is_other = names[0] != names[1]
    made = [made_by(graph) for graph in (first, second)]
    shapes = numbers = 0
    moved = set()
    for one, two in zip(first.launches, second.launches, strict=False):
        if one.name != two.name or len(one.inputs) != len(two.inputs):
            is_other = True
            break
        for a, b in zip(one.inputs, two.inputs, strict=True):
            if not isinstance(a, Tensor) or not isinstance(b, Tensor):
                numbers += not isinstance(a, Tensor | torch.Generator) and a != b
            elif (a.shape, a.stride(), a.dtype) != (b.shape, b.stride(), b.dtype):
                shapes += 1
            elif (place(a, made[0])) != place(b, made[1]):
                if a.dim() == 0 and a.device.type == "cpu":  # a number, dressed as a tensor
                    numbers += a.item() != b.item()
                else:
                    moved.add(b.untyped_storage().data_ptr())
    reads = sum(is_host_read(launch) for launch in first.launches)
    return Obstacles(int(is_other), shapes, numbers, len(moved), reads)


def made_by(graph: ToyGraph) -> dict[int, int]:
    """The number of the launch that made each piece of memory, by its address; memory that was there before
    the graph is not in it."""
    made, before = {}, set()
    for number, launch in enumerate(graph.launches):
        before |= {storage(t) for t in tensors_of(launch.inputs)} - made.keys()
        made |= {s: number for s in map(storage, launch.outputs) if s not in before and s not in made}
    return made


def place(tensor: Tensor, made: Mapping[int, int]) -> tuple[str, int, int]:
    """Where a tensor lies: ("made", number of the launch that made its memory, offset) or ("address", its
    address, offset)."""
    origin = storage(tensor)
    where = ("made", made[origin]) if origin in made else ("address", origin)
    return (*where, tensor.storage_offset())


def is_host_read(launch: CapturedLaunch) -> bool:
    """Whether the host waits for what this launch computes: a number, a shape that depends on contents, or a
    copy to the host."""
    inputs = tensors_of(launch.inputs)
    by_mask = launch.name == "aten.index" and any(t.dtype == torch.bool for t in inputs[1:])
    to_host = any(t.is_cuda for t in inputs) and any(not t.is_cuda for t in launch.outputs)
    return launch.name in HOST_READS or by_mask or to_host


def obstacle_table(steps: Mapping[str, Sequence[ToyGraph]]) -> pd.DataFrame:
    """What stands in the way of replaying a captured step, a column per kind of step, by name: the first of
    its captures against each of the others, of which the highest counts are shown."""
    columns = {}
    for name, (first, *others) in steps.items():
        found = [obstacles(first, other) for other in others]
        columns[name] = {"launches of a step": len(first.launches)} | {
            field.replace("_", " "): max(getattr(each, field) for each in found)
            for field in Obstacles._fields
        }
    return pd.DataFrame(columns)


def replayed_tokens(engine: InferenceEngine, num_steps: int) -> list[list[int]]:
    """Capture the engine's next step and replay it, without the engine. Returns the tokens of each of
    `num_steps` steps, those of the capture first. For steps in which no request needs another block."""
    (graph,) = captured_steps(engine, 1)
    likeliest = next(launch for launch in graph.launches[::-1] if launch.name == "aten.max").outputs[1]
    tokens = [likeliest.tolist()]
    for _ in range(num_steps - 1):
        graph.replay()
        tokens.append(likeliest.tolist())
    return tokens


def launch_list(graph: ToyGraph, first: int = 14) -> pd.DataFrame:
    """The first launches of a graph, a row each: the shapes of what it reads and makes, and the launch that
    made what it reads."""
    made = made_by(graph)
    rows = []
    for launch in graph.launches[:first]:
        inputs = tensors_of(launch.inputs)
        own = [made[storage(t)] for t in inputs if storage(t) in made]
        rows.append(
            {
                "launch": launch.name.removeprefix("aten."),
                "reads what was there": _shapes(t for t in inputs if storage(t) not in made),
                "reads what was made by launch": ", ".join(map(str, own)),
                "makes": _shapes(launch.outputs),
            }
        )
    return pd.DataFrame(rows)


def _shapes(tensors: Iterable[Tensor]) -> str:
    return " ".join(str(list(tensor.shape)) for tensor in tensors)


# Lines of `DeviceStep` of which a capture asks something; a test finds each in the source.
WALK = (
    (
        "slot_mapping = slots.slot_mapping[:batch_size]",
        "A view of a tensor that is there as long as the engine is: fixed address. `batch_size` becomes part "
        "of the graph: fixed shape.",
        "06: who is in the batch lies on the device. 08: a graph a bucket",
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
        "The token is where the last step left it, not in a Python list. In the middle of the layers nobody "
        "takes a block, so nobody can fail to get one: there is room already.",
        "06: last tokens on the device. 07: reserved once, before",
    ),
    (
        "if is_greedy:",
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


# --- padding ----------------------------------------------------------------------------------------------


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


def powers_of_two(max_batch_size: int) -> list[int]:
    """Buckets of 1, 2, 4, ... and `max_batch_size` itself."""
    return sorted(
        {*(2**i for i in range(max_batch_size.bit_length()) if 2**i < max_batch_size), max_batch_size}
    )


# --- the trap: captured in the middle of serving ------------------------------------------------------------


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


# --- from records -----------------------------------------------------------------------------------------


def forward_table(profiles: Sequence[StepProfile]) -> pd.DataFrame:
    """The model's forward in profiled steps, a column per quantity and a row per batch size: kernels, and
    microseconds that the host takes to launch them and the GPU to run them."""
    rows = {}
    for profile in profiles:
        host_us, gpu_us, kernels = forward_us(profile)
        rows[f"B = {profile.batch_size}"] = {
            "kernels": kernels,
            "host: to launch them (us)": round(host_us),
            "GPU: to run them (us)": round(gpu_us),
            "host: a kernel (us)": round(host_us / kernels, 1),
            "GPU: a kernel (us)": round(gpu_us / kernels, 1),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


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
    """Launches times microseconds per launch beside the measured steps, a column per batch size.

    records: of `ladder` with rungs 07 and 08, by batch size; kernels: of a step. The microseconds per launch
    are those of the smallest batch, and are held against the others. The GPU takes at most as long as a step
    of rung 08.
    """
    smallest = min(records)
    launch_us = records[smallest].step_us("07") / kernels[smallest]
    rows = {}
    for batch_size, record in sorted(records.items()):
        eager, graph = record.step_us("07"), record.step_us("08")
        model = LaunchBound(launch_us * kernels[batch_size], graph)
        rows[f"B = {batch_size}"] = {
            "kernels": kernels[batch_size],
            "launches x us": round(model.launch_us),
            "rung 07, measured (us)": round(eager),
            "of it launches, by the model": f"{model.launch_us / eager:.0%}",
            "rung 08, measured (us)": round(graph),
            "gain, by the model": f"×{model.gain:.2f}",
            "gain, measured": f"×{record.comparison('07', '08').speedup:.2f}",
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


# --- exercises --------------------------------------------------------------------------------------------


@dataclass
class ToySlots:
    """The two tensors of `DeviceSlots` that a step advances, [num_slots + 1] each. The last slot is for
    padding."""

    context_lens: Tensor
    last_token_ids: Tensor


def moves_on_once(slots: ToySlots, slot_mapping: Tensor, token_ids: Tensor) -> None:
    """Right whenever it is called, and wrong when it is replayed."""
    lens = slots.context_lens.clone()
    lens[slot_mapping] += lens[slot_mapping] >= 0
    slots.context_lens = lens
    slots.last_token_ids[slot_mapping] = token_ids.clamp(min=0)


def move_on(slots: ToySlots, slot_mapping: Tensor, token_ids: Tensor) -> None:
    """Advance the mapped slots by a token each, as `DeviceStep.advance` does: in place, and without asking
    the device for anything."""
    lens = slots.context_lens[slot_mapping]
    slots.last_token_ids[slot_mapping] = token_ids.clamp(min=0)
    slots.context_lens[slot_mapping] = torch.where(lens < 0, lens, lens + 1)


class StaysOnDevice(TorchFunctionMode):
    """A mode that raises BrokenContract for copies to the host. On a CPU they are no operator, so that no
    capture would notice them."""

    copies = (Tensor.cpu, Tensor.numpy, Tensor.__array__, Tensor.__repr__)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        to_host = any(isinstance(said, str) and said == "cpu" for said in (*args, *kwargs.values()))
        if func in self.copies or (func is Tensor.to and to_host):
            raise BrokenContract(HOST_IS_ASKED)
        return func(*args, **kwargs)


# Verdicts on attempts that could not be captured and replayed.
HOST_IS_ASKED = (
    "your function lets the host ask what a tensor holds. A capture cannot wait for an answer: no "
    "`.item()`, `.tolist()`, `.cpu()` or `int()`, no `print`, no `if` or `for` over what a tensor holds, and "
    "no elements picked by a mask, since their number is a question, too."
)
MADE_ANEW = (
    "your function leaves another tensor in slots.{}. A graph reads and writes at the addresses of the "
    "capture: a tensor that is made anew and given the old one's name is not where the next replay looks. "
    "Write in place."
)
INPUT_IS_CHANGED = (
    "your function changes {}, which is read again after it. Write to the slots and to nothing else."
)


def replayed(
    step: Callable[[ToySlots, Tensor, Tensor], object],
    context_lens: Sequence[int],
    batches: Sequence[tuple[Sequence[int], Sequence[int]]],
) -> tuple[ToySlots, ToySlots]:
    """Capture `step` while there are no requests, as the engine does, and replay it for each of some batches.

    batches: (slots, token ids) of each, in rows of equal number. Returns the slots afterwards twice: the
    tensors that now have the slots' names, and those at the addresses of the capture, which are all that a
    graph and its host share. Raises BrokenContract if the host is asked, or the batch is changed.
    """
    padding_slot = len(context_lens)
    slots = ToySlots(torch.full((padding_slot + 1,), -1), torch.zeros(padding_slot + 1, dtype=torch.int64))
    captured = ToySlots(slots.context_lens.detach(), slots.last_token_ids.detach())
    slot_mapping = torch.full((len(batches[0][0]),), padding_slot)
    token_ids = torch.zeros_like(slot_mapping)
    with torch.inference_mode(), StaysOnDevice(), ToyGraph() as graph:
        step(slots, slot_mapping, token_ids)
    if any(map(is_host_read, graph.launches)):
        raise BrokenContract(HOST_IS_ASKED)
    captured.context_lens[:padding_slot] = torch.tensor(context_lens)  # the requests join
    captured.context_lens[padding_slot], captured.last_token_ids[:] = -1, 0
    for mapped, tokens in batches:
        slot_mapping.copy_(torch.tensor(mapped))
        token_ids.copy_(torch.tensor(tokens))
        graph.replay()
        for name, told, now in (("slot_mapping", mapped, slot_mapping), ("token_ids", tokens, token_ids)):
            if now.tolist() != list(told):
                raise BrokenContract(INPUT_IS_CHANGED.format(name))
    return slots, captured


def play_move_on(
    attempt: Callable, context_lens: Sequence[int], batches: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> dict[str, object]:
    """What a graph of the attempt leaves at the slots' addresses, by name. Raises BrokenContract if it leaves
    other tensors under the slots' names."""
    slots, captured = replayed(attempt, context_lens, batches)
    for name, tensor in vars(captured).items():
        now = getattr(slots, name)
        if not isinstance(now, Tensor) or now.data_ptr() != tensor.data_ptr():
            raise BrokenContract(MADE_ANEW.format(name))
    *last_ids, of_padding = captured.last_token_ids.tolist()
    return {
        "context_lens": captured.context_lens.tolist(),
        "last_token_ids, without padding": last_ids,
        "the padding slot's last token is an index": of_padding >= 0,
    }


def draw_replays(rng: Random) -> dict[str, object]:
    """Draw arguments of `move_on`: requests in some of the slots, and batches of some of them, padded to the
    same number of rows."""
    num_slots = rng.randint(1, 6)
    num_rows = rng.randint(1, num_slots + 1)
    running = rng.sample(range(num_slots), rng.randint(1, num_slots))
    batches = []
    for _ in range(rng.randint(1, 4)):
        mapped = rng.sample(running, rng.randint(1, min(num_rows, len(running))))
        mapped += [num_slots] * (num_rows - len(mapped))
        batches.append((mapped, [rng.choice([-1, 0, rng.randint(1, 50256)]) for _ in mapped]))
    lens = [rng.choice([0, rng.randint(1, 1023)]) if slot in running else -1 for slot in range(num_slots)]
    return {"context_lens": lens, "batches": batches}


def _replays(*batches: tuple[list[int], list[int]], lens: list[int]) -> dict[str, object]:
    return {"context_lens": lens, "batches": list(batches)}


MOVE_ON = Exercise(
    name="move_on",
    cases=(
        Case(
            _replays(([0, 1], [7, 9]), lens=[5, 8]),
            {"context_lens": [6, 9, -1]},
            "Every slot that is mapped moves on by one token. The padding slot, the last one, stays at -1.",
        ),
        Case(
            _replays(([0, 1], [7, 9]), ([0, 1], [3, 4]), ([0, 1], [5, 6]), lens=[5, 8]),
            {"context_lens": [8, 11, -1]},
            "Three replays are three tokens: each goes on from what the one before has written.",
        ),
        Case(
            _replays(([0, 1], [7, 9]), ([1, 0], [3, 4]), lens=[5, 8]),
            {"last_token_ids, without padding": [4, 3]},
            "A slot remembers the token of the row that is mapped to it, and that can change from replay to "
            "replay.",
        ),
        Case(
            _replays(([1, 2, 2], [7, 0, 0]), lens=[5, 8]),
            {"context_lens": [5, 9, -1]},
            "Rows that pad a batch are mapped to the padding slot. Whatever is done to it, its length stays "
            "-1; and slots that are not mapped do not move.",
        ),
        Case(
            _replays(([0, 1], [7, 9]), ([2, 1], [3, 4]), lens=[5, 8, 2]),
            {"context_lens": [6, 10, 3, -1], "last_token_ids, without padding": [7, 4, 3]},
            "A request whose slot is not mapped this time keeps its length and its last token.",
        ),
        Case(
            _replays(([0, 2], [-1, -1]), lens=[5, 8]),
            {
                "context_lens": [6, 8, -1],
                "last_token_ids, without padding": [0, 0],
                "the padding slot's last token is an index": True,
            },
            "-1 says that there is no token. As a last token it would be an index before the embedding's "
            "first row, also in the padding slot: clamp it.",
        ),
        Case(
            _replays(([0], [7]), lens=[0]),
            {"context_lens": [1, -1]},
            "A length of 0 is that of a request without tokens so far. That of the padding slot is below 0.",
        ),
    ),
    solution=move_on,
    draw=draw_replays,
    drawn_hint="Slots that are mapped, and only those, move on by one token and remember their row's (0 for "
    "-1), in every replay. The padding slot's length stays -1.",
    play=play_move_on,
)


def which_graph(num_greedy: int, num_drawn: int, buckets: list[int]) -> tuple[int, bool, int]:
    """The bucket of a batch, whether its graph is of the greedy family, and how many of the rows are
    padding."""
    batch_size = num_greedy + num_drawn
    bucket = next(size for size in buckets if size >= batch_size)
    return bucket, num_drawn == 0, bucket - batch_size


def draw_batch(rng: Random) -> dict[str, object]:
    """Draw arguments of `which_graph`: a batch with greedy requests, sampled ones or both, and the engine's
    buckets or any others that it fits."""
    largest = rng.randint(1, 128)
    some = rng.sample(range(1, largest + 1), min(largest, 5))
    buckets = rng.choice([batch_buckets(largest), powers_of_two(largest), sorted({*some, largest})])
    batch_size = rng.choice([rng.randint(1, largest), rng.choice(buckets)])
    num_drawn = rng.choice([0, 1, batch_size, rng.randint(0, batch_size)])
    return {"num_greedy": batch_size - num_drawn, "num_drawn": num_drawn, "buckets": buckets}


def _batch(num_greedy: int, num_drawn: int, max_batch_size: int) -> dict[str, object]:
    return {"num_greedy": num_greedy, "num_drawn": num_drawn, "buckets": batch_buckets(max_batch_size)}


WHICH_GRAPH = Exercise(
    name="which_graph",
    cases=(
        Case(_batch(8, 0, 16), (8, True, 0), "Where the batch fits a bucket exactly, nothing is padded."),
        Case(
            _batch(5, 0, 16),
            (8, True, 3),
            "A graph's rows cannot become more: the bucket is the next larger one, and the rest of its rows "
            "are padding.",
        ),
        Case(
            _batch(17, 0, 64),
            (24, True, 7),
            "The next larger bucket is the smallest that is large enough, not the largest there is, nor the "
            "next power of two.",
        ),
        Case(
            _batch(7, 1, 16),
            (8, False, 0),
            "One request that draws is enough: then the batch needs the family that can draw. Greedy rows "
            "get their likeliest token there, too.",
        ),
        Case(_batch(0, 3, 16), (4, False, 1), "Requests that draw have a row each, too."),
        Case(_batch(1, 0, 1), (1, True, 0), "An engine for one request has one bucket."),
        Case(
            {"num_greedy": 4, "num_drawn": 0, "buckets": [3, 10]},
            (10, True, 6),
            "Buckets are a choice, and another engine has others: look for the bucket in the list.",
        ),
    ),
    solution=which_graph,
    draw=draw_batch,
    drawn_hint="The smallest bucket of the list with a row for every request, greedy or not; the greedy "
    "family if nobody draws; and the rows that are left over.",
)
