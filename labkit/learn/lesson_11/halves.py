"""Lesson 11: what the reader's parts are built on, parts that break a contract, and two products at once."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import permutations

import torch
from torch import Tensor

from labkit.engine.step.fused import FusedDeviceStep
from labkit.engine.step.lanes import HalfStep, Lane, LanedDeviceStep, Run
from labkit.engine.step.slots import DeviceSlots
from labkit.model import Network

# --- a program that may begin before the kernel in front of it has ended -------------------------------


class SimulatedProgram:
    """One program of a kernel that was started early: the kernel before it may still write x.

    `wait()` returns when that kernel has ended. `load(tensor, rows)` returns the values of these rows as they
    are in memory now, and keeps them in registers. rows: a slice; all rows by default.
    """

    def __init__(self, kernel_before: Callable[[], None]) -> None:
        self._kernel_before = kernel_before
        self.has_waited = False
        self.loaded_early: list[tuple[Tensor, range]] = []  # before the wait: tensor, and its rows

    def wait(self) -> None:
        """Wait until the kernel before has ended."""
        self._kernel_before()
        self.has_waited = True

    def load(self, tensor: Tensor, rows: slice = slice(None)) -> Tensor:
        """The values of these rows, as they are in memory now."""
        if not self.has_waited:
            self.loaded_early.append((tensor, range(len(tensor))[rows]))
        return tensor[rows].clone()


def waits_first(program: SimulatedProgram, weight: Tensor, rows: slice) -> Tensor:
    """A program's rows of the weight, loaded after the wait: as on the rung below."""
    program.wait()
    return program.load(weight, rows)


# --- a step in two halves --------------------------------------------------------------------------------


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
            return self.joined(self.beside_each_other(*runs))
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


# --- two launches of a split-K product at once, in one workspace or two --------------------------------

PARTS = ((1, 2), (10, 20))  # what the two programs of each launch add up
RIGHT = tuple(map(sum, PARTS))


def told(num_workspaces: int) -> str:
    """In how many of the orders in which a GPU may run their programs both launches make the right sum, and
    the wrong outcome that most of the others have.

    num_workspaces: 1, which both share, or 2.
    """
    orders = sorted(set(permutations((0, 1, 2, 3) * 2)))
    found = Counter(outcome(order, num_workspaces) for order in orders)
    total = sum(found.values())
    text = f"{found.pop(RIGHT, 0):,} of {total:,} orders right"
    if not found:
        return text
    ((wrong, times),) = found.most_common(1)
    return f"{text}; {times:,} make {wrong[0]} and {wrong[1]}, not {RIGHT[0]} and {RIGHT[1]}"


def outcome(order: Sequence[int], num_workspaces: int) -> tuple[int | None, ...]:
    """What both launches make if their four programs act in this order; None for a launch in which no program
    took itself for the last one. A program first leaves its part. Then it counts itself, and if it is the
    last to arrive, it adds up all parts and sets the counter back."""
    workspaces = [[0, 0] for _ in range(num_workspaces)]
    arrived = [0] * num_workspaces
    made: list[int | None] = [None, None]
    have_left: set[int] = set()
    for program in order:
        launch, number = divmod(program, 2)
        its = launch % num_workspaces
        if program not in have_left:
            have_left.add(program)
            workspaces[its][number] = PARTS[launch][number]
            continue
        arrived[its] += 1
        if arrived[its] == len(PARTS[launch]):
            made[launch], arrived[its] = sum(workspaces[its]), 0
    return tuple(made)
