"""The device's part of a decode step in two lanes (rung 11): each half of the batch hides the other's waits."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.engine.step.attention import AttendAndWrite
from labkit.engine.step.fused import FusedDeviceStep, FusedKernels
from labkit.engine.step.slots import DeviceSlots
from labkit.model import Network

NUM_LANES = 2


class Lane(NamedTuple):
    """What launches that follow each other need for themselves: kernels and attention whose workspaces no
    other lane has. Two launches at once in one workspace would count each other's parts."""

    attention: AttendAndWrite
    kernels: FusedKernels


class HalfStep(FusedDeviceStep):
    """The layers of a step, with the step's weights, for the launches of one lane."""

    def __init__(self, step: FusedDeviceStep, lane: Lane) -> None:
        vars(self).update(vars(step))  # its weights are in memory once
        self.attention, self.kernels = lane


class LanedDeviceStep(FusedDeviceStep):
    """A `FusedDeviceStep` whose larger batches go through the layers in two halves beside each other.

    Inside a CUDA graph each half has a stream of its own: while a kernel of one waits for the kernel before
    it, the GPU has one of the other. Elsewhere the halves follow each other, and the tokens are the same.
    """

    least_rows = 32  # a smaller batch goes through the layers as a whole

    def __init__(self, slots: DeviceSlots, network: Network, lanes: Sequence[Lane]) -> None:
        """lanes: for each half, what its launches need for themselves. A whole batch takes the first's."""
        super().__init__(slots, network, *lanes[0])
        self.halves = [HalfStep(self, lane) for lane in lanes]
        device = slots.slot_mapping.device
        self.side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def through_layers(self, slot_mapping: Tensor, max_context_len: int) -> Tensor:
        if len(slot_mapping) < self.least_rows:
            return super().through_layers(slot_mapping, max_context_len)
        halves = slot_mapping.chunk(len(self.halves))
        if slot_mapping.is_cuda and torch.cuda.is_current_stream_capturing():
            return torch.cat(self.beside_each_other(*halves, max_context_len))
        pairs = zip(self.halves, halves, strict=True)
        return torch.cat([step.through_layers(half, max_context_len) for step, half in pairs])

    def beside_each_other(self, first: Tensor, second: Tensor, max_context_len: int) -> list[Tensor]:
        """Both halves' outputs of the last layer, from two streams that are captured: the order in which each
        waits for the other.

        The first kernel behind a fork or a join must not begin early: it is no dependent launch.
        """
        main, side = torch.cuda.current_stream(), self.side
        side.wait_stream(main)  # the fork
        with torch.cuda.stream(side):
            there = self.halves[1].through_layers(second, max_context_len)
        here = self.halves[0].through_layers(first, max_context_len)
        main.wait_stream(side)  # the join
        return [here, there]
