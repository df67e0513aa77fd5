"""Lesson 08: graphs of this machine's kind, and what cannot be captured."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple, Protocol

import pandas as pd
import torch
from torch import Tensor

from labkit.engine import InferenceEngine
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.graphed import batch_buckets, cuda_captures
from labkit.watch import CapturedLaunch, LaunchRecorder, ToyGraph, capture, captured_steps, recorded_step
from labkit.watch.operators import storage, tensors_of

# --- a step captured in a graph of the machine's kind, and steps that are padded or replayed -----------


class Graph(Protocol):
    """What a capture gives: a CUDA graph, or a toy."""

    def replay(self) -> None:
        """Run all that was captured once more."""


@contextmanager
def capturing(
    device_step: DeviceStep, toy: Callable[[], LaunchRecorder]
) -> Iterator[Callable[[int, bool], tuple[Graph, Tensor]]]:
    """Inside the block, its value captures a step of `size` rows: `graph, token_ids = capture(size,
    is_greedy)`, with the tensor [size] that each replay leaves its tokens in.

    On a GPU the graph is a CUDA graph. Without one it is a `toy()`, a recorder of launches that has a
    `replay`. A size that the engine has no slots for raises ValueError: its tensors would end earlier.
    """
    num_slots = len(device_step.slots.slot_mapping)

    def in_toy(size: int, is_greedy: bool) -> tuple[Graph, Tensor]:
        graph = toy()
        return graph, recorded_step(device_step, size, is_greedy, graph)

    is_cuda = device_step.slots.slot_mapping.is_cuda
    with cuda_captures(device_step) if is_cuda else nullcontext(in_toy) as captured:

        def capture_in_slots(size: int, is_greedy: bool) -> tuple[Graph, Tensor]:
            if not 1 <= size <= num_slots:
                raise ValueError(f"a graph of {size} rows, but max_batch_size is {num_slots}")
            return captured(size, is_greedy)

        yield capture_in_slots


class ToyGraphedStep:
    """A `GraphedStep` made of toy graphs: all of them are captured when it is made, and replayed
    afterwards."""

    def __init__(self, device_step: DeviceStep) -> None:
        self.device_step = device_step
        self.families = device_step.families
        self.buckets = batch_buckets(len(device_step.slots.slot_mapping))
        self.graphs = {
            (bucket, draws): capture(device_step, bucket, draws)
            for bucket in self.buckets[::-1]
            for draws in device_step.families
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


# --- what a captured step is made of, and what stands in the way of replaying it -----------------------

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
    "aten.unique_consecutive",
    "aten.unique_dim",
    "aten.bincount",
    "aten.repeat_interleave",
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
    if launch.name == "aten.index_put_" and len(inputs) > 2:  # a single number fills, and is no question
        adds_up = any(value is True for value in launch.inputs)
        by_mask = any(t.dtype == torch.bool for t in inputs[1:-1]) and (adds_up or inputs[-1].numel() > 1)
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
