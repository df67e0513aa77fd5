"""Lesson 08: a step captured in a graph of the machine's kind, and steps that are padded or replayed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol

from torch import Tensor

from labkit.engine.step.device import DeviceStep
from labkit.engine.step.graphed import batch_buckets, cuda_captures
from labkit.watch import LaunchRecorder, capture, recorded_step


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
