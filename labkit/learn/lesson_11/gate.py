"""Lesson 11: weights that are loaded before the wait, and a large batch in two halves beside each other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from labkit.engine import InferenceEngine
from labkit.engine.step.fused import FusedDeviceStep
from labkit.engine.step.lanes import NUM_LANES, HalfStep, Lane, LanedDeviceStep, Run
from labkit.engine.step.slots import DeviceSlots
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates import Report
from labkit.learn.gates.gate import Build, Gate, proven
from labkit.learn.gates.resident import MIXED
from labkit.learn.gates.same_step import steps_proven
from labkit.learn.lesson_11.simulated import LEAST_ROWS, StreamLaunch, play, steps_to_play
from labkit.learn.steps import noted
from labkit.model import Network
from labkit.watch.launches import device_step_of
from labkit.watch.operators import storage
from labkit.watch.replaced import replaced

# --- step 1: a program of a product, which loads its weights early ---------------------------------------


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


N, K, ROWS = 8, 6, 2  # outputs, inputs, and the outputs of a program
Product = Callable[[SimulatedProgram, Tensor, Tensor, slice], Tensor]


def check_held(product: Product) -> Report:
    """Run the programs of a product, each with its rows of the weight, while another kernel still writes x.

    It never raises, except for an interrupt.
    """
    told = f"{N // ROWS} programs load their rows of the weight before the wait, and x after it."
    return noted(proven("held", [lambda: held_proven(product)], told), "11", "held", product)


def held_proven(product: Product) -> None:
    """Raise BrokenContract for a program that makes wrong values, or loads others early than its weights."""
    for number in range(N // ROWS):
        weight = torch.arange(1.0, N * K + 1).view(N, K)
        x, written = torch.zeros(K), torch.linspace(1, 2, K)
        rows = slice(ROWS * number, ROWS * (number + 1))
        program = SimulatedProgram(lambda x=x, written=written: x.copy_(written))
        made, expected = product(program, x, weight, rows), weight[rows] @ written
        whose = f"program {number} of {N // ROWS}"
        if not program.has_waited:
            raise BrokenContract(f"a program waits for the kernel before it: {whose} never calls wait().")
        if made.shape != expected.shape or not torch.allclose(made, expected):
            raise BrokenContract(
                f"x is read after the wait: {whose} makes {made.tolist()}, expected {expected.tolist()}. "
                "Before the wait x has the values of an earlier step, here zeros."
            )
        early = sorted(row for tensor, its in program.loaded_early if tensor is weight for row in its)
        if early != (own := [*range(N)[rows]]):
            raise BrokenContract(
                f"weights are loaded before the wait, each once: {whose} has loaded rows {early} of the "
                f"weight when it waits, expected {own}. No kernel writes weights, so they need no wait."
            )


# --- steps 2 to 4: two halves ----------------------------------------------------------------------------


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


BATCHES = (LEAST_ROWS, LEAST_ROWS + 1, 8)  # even, odd, and one with padding
LAYERS = ("embed", "norm_linear", "attention", "linear_residual")
CLOSE = {"rtol": 1e-3, "atol": 1e-2}


def simulated_halves(build: Build) -> None:
    """The halves neither race nor follow each other, keep all rows in order, and share their weights."""
    with steps_to_play(build) as step:
        for batch_size in BATCHES:
            if isinstance(step, InHalves):
                cut_fits(step, batch_size)
            made, expected, launches = play(step, batch_size)
            same_rows(made, expected)
            beside_each_other(launches, batch_size)


def cut_fits(step: InHalves, batch_size: int) -> None:
    """Raise BrokenContract unless `cut` makes two equal slices of neighbours, and puts each row into one."""
    slot_mapping = step.slots.slot_mapping[:batch_size]
    parts = list(step.cut(slot_mapping))
    if len(parts) != NUM_LANES:
        raise BrokenContract(
            f"a large batch is cut in two: of {batch_size} rows, with `least_rows` {LEAST_ROWS}, `cut` "
            f"makes {len(parts)} part{'s' * (len(parts) != 1)}, expected {NUM_LANES}."
        )
    are_slices = all(storage(part) == storage(slot_mapping) for part in parts)
    are_equal = abs(len(parts[0]) - len(parts[1])) <= 1
    if not (are_slices and are_equal and torch.equal(torch.cat(parts), slot_mapping)):
        raise BrokenContract(
            "the halves are slices of neighbours, equal or one row apart, and each row is in one: of the "
            f"slots {slot_mapping.tolist()} `cut` makes {parts[0].tolist()} and {parts[1].tolist()}. A slice "
            "costs no kernel, and kernels read slots that lie side by side. Even the odd row is in a half, "
            "and so are those that pad the batch."
        )


def same_rows(made: Tensor, expected: Tensor) -> None:
    """Raise BrokenContract unless each row is what a step makes that is not cut."""
    if made.shape != expected.shape:
        raise BrokenContract(
            f"the halves are all of the batch: a batch of {len(expected)} comes out of the layers as "
            f"{tuple(made.shape)}, expected {tuple(expected.shape)}. `joined` puts both outputs together."
        )
    for row, its in enumerate(made):
        alike = torch.isclose(expected, its, **CLOSE).all(1).nonzero()[:, 0].tolist()
        if row not in alike:
            whose = f"row {alike[0]}" if alike else "no row"
            raise BrokenContract(
                f"rows keep their order: row {row} of {len(expected)} comes out as {whose} of the batch. "
                "Join the outputs in the order of `slot_mapping`. `beside_each_other` returns the first "
                "half's output first."
            )


def beside_each_other(launches: list[StreamLaunch], num_rows: int) -> None:
    """Raise BrokenContract unless both halves are launched once, in two streams, with the same weights, and
    neither waits for the other."""
    of_layers = [launch for launch in launches if launch.kernel in LAYERS]
    here, there = ([each for each in of_layers if each.stream == name] for name in ("main", "side"))
    if not here or not there:
        empty = "side" if not there else "main"
        raise BrokenContract(
            "a large batch goes through the layers in two halves beside each other: of "
            f"{num_rows} rows, with `least_rows` {LEAST_ROWS}, none is in the {empty} stream. The kernels "
            "wait for each other as on the rung below. A launch inside "
            "`with self.streams.launching_in(side):` is in the side stream, any other in the main stream."
        )
    begun = [launch.rows for launch in of_layers if launch.kernel == "embed"]
    if sum(begun) != num_rows:
        raise BrokenContract(
            f"each half is launched once: of {num_rows} rows, {sum(begun)} went into the layers, in "
            f"{len(begun)} launches. Call `first` and `second` once each, and return what they returned."
        )
    for first, second in ((here, there), (there, here)):
        waited_for = [launch for launch in first if second[0].is_behind(launch)]
        if len(waited_for) > len(first) / 2:
            raise BrokenContract(
                f"neither half waits for the other: {second[0]} waits for {len(waited_for)} of the "
                f"{len(first)} kernels of the other half. Let the side stream wait before either half is "
                "launched, and the main stream only after both are launched."
            )
    read = [
        {storage(tensor) for each in lane if each.kernel == "norm_linear" for tensor in each.inputs}
        for lane in (here, there)
    ]
    if not read[0] & read[1]:
        raise BrokenContract(
            "weights are in memory once: the products of the two halves read different weights. A `HalfStep` "
            "has those of the step that it is made from."
        )


@contextmanager
def small_batches_cut(engine: InferenceEngine) -> Iterator[tuple[()]]:
    """Inside the block, batches of two are cut, too, and launched kernel by kernel, by no graph."""
    step = device_step_of(engine)
    step.least_rows = 2
    with replaced(engine.decode_step, "device_step", lambda _: step):
        yield ()


GATE = Gate(
    ("latency",),
    LADDER["10"].options,
    watches=(small_batches_cut, steps_proven),
    samplings=MIXED,
    trials=(simulated_halves,),
)
