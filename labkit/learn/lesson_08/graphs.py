"""Lesson 08: graphs of this machine's kind, and what cannot be captured."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext

import pandas as pd
import torch
from torch import Tensor

from labkit.engine.step.device import DeviceStep
from labkit.engine.step.graphed import GraphedStep, batch_buckets, cuda_captures
from labkit.watch import CapturedLaunch, LaunchRecorder, ToyGraph, capture, recorded_step
from labkit.watch.operators import storage, tensors_of

# --- a step captured in a graph of the machine's kind, and steps that are padded or replayed -----------


Graph = torch.cuda.CUDAGraph | LaunchRecorder  # what a capture gives: it has a `replay`


@contextmanager
def capturing(
    device_step: DeviceStep, toy: Callable[[], LaunchRecorder]
) -> Iterator[Callable[[int, bool], tuple[Graph, Tensor]]]:
    """Inside the block, its value captures a step of `size` rows: `graph, token_ids = capture(size,
    is_greedy)`, with the tensor [size] that each replay leaves its tokens in.

    On a GPU the graph is a CUDA graph. Without one it is a `toy()`, a recorder of launches that has a
    `replay`.
    """

    def in_toy(size: int, is_greedy: bool) -> tuple[Graph, Tensor]:
        graph = toy()
        return graph, recorded_step(device_step, size, is_greedy, graph)

    is_cuda = device_step.slots.slot_mapping.is_cuda
    with cuda_captures(device_step) if is_cuda else nullcontext(in_toy) as capture:
        yield capture


class ToyGraphedStep:
    """A `GraphedStep` of toy graphs: all are captured when it is made, and replayed afterwards."""

    def __init__(self, device_step: DeviceStep) -> None:
        self.device_step = device_step
        self.families = device_step.families
        self.buckets = batch_buckets(len(device_step.slots.slot_mapping))
        self.graphs = {
            (bucket, draws): capture(device_step, bucket, draws)
            for bucket in self.buckets[::-1]
            for draws in device_step.families
        }

    def __call__(self, batch_size: int, max_context_len: int, is_greedy: bool) -> Tensor:
        bucket = next(size for size in self.buckets if size >= batch_size)
        graph, token_ids = self.graphs[bucket, is_greedy]
        graph.replay()
        return token_ids[:batch_size]


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


# --- what a captured step is made of, and what the host must wait for ---------------------------------

# Operators that the host waits for: they read a number, have a shape that depends on contents, or make a
# Python list of a tensor.
HOST_READS = ("item", "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "resolve_neg")


def is_host_read(launch: CapturedLaunch) -> bool:
    """Whether the host waits for what this launch computes: a number, or a shape that depends on contents."""
    inputs, name = tensors_of(launch.inputs), launch.name.removeprefix("aten.")
    picks = name == "index" or (name == "index_put_" and inputs[-1].numel() > 1)  # a single number fills
    return name in HOST_READS or (picks and any(t.dtype == torch.bool for t in inputs[1:]))


def launch_list(graph: ToyGraph, first: int) -> pd.DataFrame:
    """The first launches of a graph: what each reads and makes, and which launches made that before."""
    made, before = {}, set()  # the launch that made each piece of memory; memory that was there before
    for number, launch in enumerate(graph.launches):
        before |= {storage(t) for t in tensors_of(launch.inputs)} - made.keys()
        made |= {s: number for s in map(storage, launch.outputs) if s not in before and s not in made}
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
