"""Lesson 08: graphs of this machine's kind, and what cannot be captured."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol

import pandas as pd
import torch
from torch import Tensor

from labkit.engine.step.device import DeviceStep
from labkit.engine.step.graphed import GraphedStep, batch_buckets, cuda_captures
from labkit.watch import CapturedLaunch, LaunchRecorder, ToyGraph, capture, recorded_step
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
    `replay`. A size that the engine has no slots for raises ValueError: its tensors would end earlier. So
    does a capture after the block.
    """
    num_slots, is_open = len(device_step.slots.slot_mapping), True

    def in_toy(size: int, is_greedy: bool) -> tuple[Graph, Tensor]:
        graph = toy()
        return graph, recorded_step(device_step, size, is_greedy, graph)

    is_cuda = device_step.slots.slot_mapping.is_cuda
    with cuda_captures(device_step) if is_cuda else nullcontext(in_toy) as captured:

        def capture_in_slots(size: int, is_greedy: bool) -> tuple[Graph, Tensor]:
            if not is_open:
                raise ValueError("`capture` was called after the `with` block in which it can be")
            if not 1 <= size <= num_slots:
                raise ValueError(f"a graph of {size} rows, but max_batch_size is {num_slots}")
            return captured(size, is_greedy)

        try:
            yield capture_in_slots
        finally:
            is_open = False


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


# --- what a captured step is made of, and what the host must wait for ---------------------------------

# Operators that the host waits for: they read a number, have a shape that depends on contents, or make a
# Python list of a tensor.
HOST_READS = re.compile(
    r"aten\.(item|_local_scalar_dense|is_nonzero|equal|nonzero|masked_select|_unique2|unique_consecutive"
    r"|unique_dim|bincount|repeat_interleave|resolve_neg)"
)


class SlotsMadeAnew:
    """Graphs, and one line too many: what the slots lie in is copied before each replay."""

    def __init__(self, device_step: DeviceStep) -> None:
        self.device_step = device_step
        on_gpu = device_step.slots.slot_mapping.is_cuda
        self.graphs = GraphedStep(device_step) if on_gpu else ToyGraphedStep(device_step)

    def __call__(self, batch_size: int, max_context_len: int, is_greedy: bool) -> Tensor:
        memory = self.device_step.slots.memory
        memory.words = memory.words.clone()
        return self.graphs(batch_size, max_context_len, is_greedy)


def made_by(graph: ToyGraph) -> dict[int, int]:
    """The number of the launch that made each piece of memory, by its address; memory that was there before
    the graph is not in it."""
    made, before = {}, set()
    for number, launch in enumerate(graph.launches):
        before |= {storage(t) for t in tensors_of(launch.inputs)} - made.keys()
        made |= {s: number for s in map(storage, launch.outputs) if s not in before and s not in made}
    return made


def is_host_read(launch: CapturedLaunch) -> bool:
    """Whether the host waits for what this launch computes: a number, a shape that depends on contents, or a
    copy to the host."""
    inputs = tensors_of(launch.inputs)
    by_mask = launch.name == "aten.index" and any(t.dtype == torch.bool for t in inputs[1:])
    if launch.name == "aten.index_put_" and len(inputs) > 2:  # a single number fills, and is no question
        adds_up = any(value is True for value in launch.inputs)
        by_mask = any(t.dtype == torch.bool for t in inputs[1:-1]) and (adds_up or inputs[-1].numel() > 1)
    to_host = any(t.is_cuda for t in inputs) and any(not t.is_cuda for t in launch.outputs)
    return HOST_READS.fullmatch(launch.name) is not None or by_mask or to_host


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
