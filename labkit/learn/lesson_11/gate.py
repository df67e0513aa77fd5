"""Lesson 11: a large batch in two halves beside each other, which make the plain step's tokens."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from labkit.engine import InferenceEngine
from labkit.engine.step.lanes import NUM_LANES, LanedDeviceStep
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, Gate
from labkit.learn.gates.resident import MIXED
from labkit.learn.gates.same_step import steps_proven
from labkit.learn.lesson_11.halves import InHalves, shown
from labkit.learn.lesson_11.streams import LEAST_ROWS, SimulatedStep, StreamLaunch, steps_to_play
from labkit.watch.launches import device_step_of
from labkit.watch.operators import storage
from labkit.watch.replaced import replaced

BATCHES = (LEAST_ROWS, LEAST_ROWS + 1, 8)  # even, odd, and one with padding
SMALLEST_CUT = 2  # rows of a batch that is cut in the schedules
LAYERS = ("embed", "norm_linear", "attention", "linear_residual")
CLOSE = {"rtol": 1e-3, "atol": 1e-2}


def simulated_halves(build: Build) -> None:
    """Raise BrokenContract for a step whose halves race, lose rows or their order, follow each other, or have
    weights of their own; and for one that cuts a small batch."""
    with steps_to_play(build) as player:
        if isinstance(player.step, InHalves):
            pieces_fit(player.step)
        for batch_size in BATCHES:
            simulated = player.play(batch_size)
            same_rows(simulated)
            beside_each_other(simulated)
            same_weights(simulated)
        if any(launch.stream != "main" for launch in player.play(LEAST_ROWS - 1).launches):
            raise BrokenContract(
                f"a small batch goes through the layers as a whole: one of {LEAST_ROWS - 1} is cut, and "
                f"`least_rows` is {LEAST_ROWS}. Two halves of it would read the weights twice and gain "
                "nothing."
            )


def pieces_fit(step: InHalves) -> None:
    """Raise BrokenContract unless there is a step for each half, and `cut` puts each row into one of two."""
    halves = step.halves
    is_pair = isinstance(halves, list | tuple) and len(halves) == NUM_LANES
    if not is_pair or any(isinstance(half, LanedDeviceStep) for half in halves):
        raise BrokenContract(
            f"each half has a step of its own: `make_halves` returns {shown(halves)}, expected a list of "
            f"{NUM_LANES} steps that cut nothing, one per lane. A `HalfStep(self, lane)` launches its rows "
            "as they are."
        )
    for batch_size in BATCHES:
        slot_mapping = step.slots.slot_mapping[:batch_size]
        parts = step.cut(slot_mapping)
        if not isinstance(parts, list | tuple) or not all(isinstance(part, Tensor) for part in parts):
            raise BrokenContract(
                f"a large batch is cut in two: `cut` returns {shown(parts)}, expected a list of two tensors "
                "of slots."
            )
        if len(parts) != NUM_LANES:
            raise BrokenContract(
                f"a large batch is cut in two: of {batch_size} rows, with `least_rows` {LEAST_ROWS}, `cut` "
                f"makes {len(parts)} part{'s' * (len(parts) != 1)}, expected {NUM_LANES}."
            )
        if torch.cat(list(parts)).sort().values.tolist() != slot_mapping.sort().values.tolist():
            raise BrokenContract(
                f"the halves are all of the batch: of the slots {slot_mapping.tolist()} `cut` makes "
                f"{' and '.join(str(part.tolist()) for part in parts)}. Each row is in one half, even "
                "the odd one, and so are those that pad the batch."
            )
        if any(storage(part) != storage(slot_mapping) or not part.is_contiguous() for part in parts):
            raise BrokenContract(
                "a cut costs nothing: `cut` makes other tensors than slices of neighbours in slot_mapping. "
                "Kernels read slots that follow each other, so do not take every other row. A copy is one "
                "more kernel, and `tolist` makes the host wait for the GPU, which no CUDA graph can hold."
            )


def same_rows(simulated: SimulatedStep) -> None:
    """Raise BrokenContract unless each row is what a step makes that is not cut."""
    made, expected = simulated.made, simulated.expected
    if not isinstance(made, Tensor) or made.shape != expected.shape:
        there = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise BrokenContract(
            f"the halves are all of the batch: a batch of {len(expected)} comes out of the layers as "
            f"{there}, expected {tuple(expected.shape)}. Each row is in one half, even the odd one, "
            "and joined they are a tensor with a row per slot."
        )
    for row, slot in enumerate(simulated.slot_mapping.tolist()):
        wrong = ~torch.isclose(made[row], expected[row], **CLOSE)
        if slot != simulated.padding_slot and wrong.any():
            place = wrong.nonzero()[0].item()
            others = torch.isclose(expected, made[row], **CLOSE).all(1).nonzero()[:, 0].tolist()
            whose = f" It is row {others[0]} of the batch." if others else ""
            raise BrokenContract(
                f"rows keep their order: row {row} of {len(expected)} (slot {slot}), number {place} is "
                f"{made[row, place]:.4f}, expected {expected[row, place]:.4f}.{whose} The outputs of the "
                "layers are in the order of `slot_mapping`: cut it into neighbours, and join them in order. "
                "`beside_each_other` returns the first half's output first."
            )


def beside_each_other(simulated: SimulatedStep) -> None:
    """Raise BrokenContract unless neither half waits for the other."""
    lanes = lanes_of(simulated.launches)
    (here, there), total = (lanes["main"], lanes["side"]), len(simulated.slot_mapping)
    if not here or not there:
        empty = "side" if not there else "main"
        raise BrokenContract(
            f"a large batch goes through the layers in two halves beside each other: of {total} rows, with "
            f"`least_rows` {LEAST_ROWS}, none is in the {empty} stream. The kernels wait for each other as "
            "on the rung below. A launch inside `with self.streams.launching_in(side):` is in the side "
            "stream, any other in the main stream."
        )
    begun = [launch.rows for launch in (*here, *there) if launch.kernel == "embed"]
    if sum(begun) != total:
        raise BrokenContract(
            f"each half is launched once: of {total} rows, {sum(begun)} went into the layers, in "
            f"{len(begun)} launches. Call `first` and `second` once each, and return what they returned."
        )
    rows = [lane[0].rows for lane in (here, there)]
    if abs(rows[0] - rows[1]) > 1:
        raise BrokenContract(
            f"the halves are equal, or one row apart: of {total} rows {rows[0]} are in the main stream and "
            f"{rows[1]} in the side stream. The longer one would run on alone."
        )
    for first, second in ((here, there), (there, here)):
        waited_for = [launch for launch in first if second[0].is_behind(launch)]
        if len(waited_for) > len(first) / 2:
            raise BrokenContract(
                f"neither half waits for the other: {second[0]} waits for {len(waited_for)} of the "
                f"{len(first)} kernels of the other half. Let the side stream wait before either half is "
                "launched, and the main stream only after both are launched."
            )


def same_weights(simulated: SimulatedStep) -> None:
    """Raise BrokenContract if a half reads weights of its own."""
    lanes = lanes_of(simulated.launches).values()
    here, there = ([launch for launch in lane if launch.kernel == "norm_linear"] for lane in lanes)
    for number, pair in enumerate(zip(here, there, strict=False)):
        weights = [{storage(tensor) for tensor in launch.inputs if tensor.dim() == 2} for launch in pair]
        if not weights[0] & weights[1]:
            raise BrokenContract(
                f"weights are in memory once: norm_linear {number} of the two halves reads two different "
                "weights. A `HalfStep` has those of the step that it is made from."
            )


def lanes_of(launches: list[StreamLaunch]) -> dict[str, list[StreamLaunch]]:
    """The launches of the layers, by stream."""
    return {
        stream: [launch for launch in launches if launch.stream == stream and launch.kernel in LAYERS]
        for stream in ("main", "side")
    }


@contextmanager
def small_batches_cut(engine: InferenceEngine) -> Iterator[tuple[()]]:
    """Inside the block, batches of two are cut, too, and launched kernel by kernel: a graph was captured
    before."""
    step = device_step_of(engine)
    if isinstance(step, LanedDeviceStep):
        step.least_rows = SMALLEST_CUT
    with replaced(engine.decode_step, "device_step", lambda _: step):
        yield ()


GATE = Gate(
    ("latency",),
    LADDER["10"].options,
    watches=(small_batches_cut, steps_proven),
    samplings=MIXED,
    trials=(simulated_halves,),
)
