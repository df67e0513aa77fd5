"""Lesson 11: the step that the reader's part is built on, and steps that break one of its contracts."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from labkit.engine.step.fused import FusedDeviceStep
from labkit.engine.step.lanes import NUM_LANES, HalfStep, Lane, LanedDeviceStep, Run
from labkit.engine.step.slots import DeviceSlots
from labkit.learn.exercise import BrokenContract
from labkit.model import Network


class InHalves(LanedDeviceStep):
    """A `LanedDeviceStep` in the pieces that the lesson writes: each is the package's until it is written.

    A cut into a single part sends the batch through the layers as a whole, as on the rung below.
    """

    def __init__(self, slots: DeviceSlots, network: Network, lanes: Sequence[Lane]) -> None:
        super().__init__(slots, network, lanes)
        self.halves = self.make_halves(lanes)

    def through_layers(self, slot_mapping: Tensor, max_context_len: int) -> Tensor:
        parts = self.cut(slot_mapping) if len(slot_mapping) >= self.least_rows else [slot_mapping]
        if len(parts) == 1:
            return FusedDeviceStep.through_layers(self, parts[0], max_context_len)
        pairs = zip(self.halves, parts, strict=True)
        runs = [partial(half.through_layers, rows, max_context_len) for half, rows in pairs]
        if self.streams.are_captured:
            return self.joined(both_outputs(self.beside_each_other(*runs)))
        return self.joined([run() for run in runs])

    def cut(self, slot_mapping: Tensor) -> Sequence[Tensor]:
        """The slots [B] of a batch in two parts."""
        return slot_mapping.chunk(2)

    def joined(self, outputs: list[Tensor]) -> Tensor:
        """The output [B, E] of a batch, from those of its parts, in their order."""
        return torch.cat(outputs)

    def make_halves(self, lanes: Sequence[Lane]) -> Sequence[FusedDeviceStep]:
        """A step for each part of a batch, to launch its layers."""
        return [HalfStep(self, lane) for lane in lanes]


def both_outputs(returned: object) -> Sequence[Tensor]:
    """What `beside_each_other` returned. Raises BrokenContract unless that is the outputs of both halves."""
    is_pair = isinstance(returned, list | tuple) and len(returned) == NUM_LANES
    if is_pair and all(isinstance(output, Tensor) for output in returned):
        return returned
    raise BrokenContract(
        f"both halves are launched: `beside_each_other` returns {shown(returned)}, expected [Tensor, "
        "Tensor]: what `first()` returns, and what `second()` does. `joined` puts them together."
    )


def shown(value: object) -> str:
    """What a piece returned, for a verdict: how many of what."""
    if not isinstance(value, list | tuple):
        return type(value).__name__
    return f"a {type(value).__name__} of {len(value)}: {', '.join(type(item).__name__ for item in value)}"


class SharesAWorkspace(InHalves):
    """Both halves launch with the first lane's kernels."""

    def make_halves(self, lanes: Sequence[Lane]) -> Sequence[FusedDeviceStep]:
        return [HalfStep(self, lanes[0]), HalfStep(self, lanes[0])]


class ForgetsTheJoin(InHalves):
    """The main stream goes on without the side stream's half."""

    def beside_each_other(self, first: Run, second: Run) -> list[Tensor]:
        self.streams.side.wait_stream(self.streams.main)
        with self.streams.launching_in(self.streams.side):
            there = second()
        return [first(), there]
