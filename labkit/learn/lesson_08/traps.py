"""Lesson 08: a launch of graphs that is wrong on purpose."""

from torch import Tensor

from labkit.engine.step.device import DeviceStep
from labkit.engine.step.graphed import GraphedStep
from labkit.learn.lesson_08.graphs import ToyGraphedStep


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
