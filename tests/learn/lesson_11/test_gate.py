"""The gate of lesson 11: wrong parts are refused by the contract that they break, right ones pass."""

import re

import pytest
import torch

from labkit import lab
from labkit.engine.step.fused import FusedDeviceStep
from labkit.engine.step.lanes import HalfStep, LanedDeviceStep
from labkit.learn import not_attempted
from labkit.learn.lesson_11.halves import ForgetsTheJoin, InHalves, SharesAWorkspace

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here():
    return lab.start("11")


# --- rows ------------------------------------------------------------------------------------------


class OnePart(InHalves):
    def cut(self, slot_mapping):
        return [slot_mapping]


class EvenAndOdd(InHalves):
    def cut(self, slot_mapping):
        return [slot_mapping[::2].contiguous(), slot_mapping[1::2].contiguous()]


class LosesTheOddRow(InHalves):
    def cut(self, slot_mapping):
        half = len(slot_mapping) // 2
        return [slot_mapping[:half], slot_mapping[half : 2 * half]]


class TheOddRowTwice(InHalves):
    def cut(self, slot_mapping):
        half = (len(slot_mapping) + 1) // 2
        return [slot_mapping[:half], slot_mapping[-half:]]


class SameHalfTwice(InHalves):
    def cut(self, slot_mapping):
        return [slot_mapping.chunk(2)[0]] * 2


class AllInBoth(InHalves):
    def cut(self, slot_mapping):
        return [slot_mapping, slot_mapping]

    def joined(self, outputs):
        return outputs[0]


class WithoutPadding(InHalves):
    def cut(self, slot_mapping):
        return slot_mapping[slot_mapping < self.slots.padding_slot].chunk(2)


class CutsNothing(InHalves):
    def cut(self, slot_mapping):
        slot_mapping.chunk(2)


class ListsOfNumbers(InHalves):
    def cut(self, slot_mapping):
        half = len(slot_mapping) // 2
        return [slot_mapping.tolist()[:half], slot_mapping.tolist()[half:]]


class JoinedTheOtherWay(InHalves):
    def joined(self, outputs):
        return torch.cat(outputs[::-1])


class JoinedAside(InHalves):
    def joined(self, outputs):
        return torch.cat(outputs, dim=1)


class FirstHalfAlone(InHalves):
    def joined(self, outputs):
        return outputs[0]


class OneRowAndTheRest(InHalves):
    def cut(self, slot_mapping):
        return [slot_mapping[:1], slot_mapping[1:]]


class RowsAsAView(InHalves):
    def cut(self, slot_mapping):
        return slot_mapping.view(2, -1)


class ThreeParts(InHalves):
    def cut(self, slot_mapping):
        return slot_mapping.chunk(3)


class AStackOfHalves(InHalves):
    def joined(self, outputs):
        return torch.stack(outputs).flatten(0, 1)


class CutsSmallBatches(InHalves):
    def through_layers(self, slot_mapping, max_context_len):
        self.least_rows = 2
        return super().through_layers(slot_mapping, max_context_len)


# --- what the halves share -------------------------------------------------------------------------


class SharesAttention(InHalves):
    def make_halves(self, lanes):
        return [HalfStep(self, lanes[0]), HalfStep(self, lanes[1]._replace(attention=lanes[0].attention))]


class SharesKernels(InHalves):
    def make_halves(self, lanes):
        return [HalfStep(self, lanes[0]), HalfStep(self, lanes[1]._replace(kernels=lanes[0].kernels))]


class WeightsTwice(InHalves):
    def make_halves(self, lanes):
        return [FusedDeviceStep(self.slots, self.network, *lane) for lane in lanes]


class OneHalf(InHalves):
    def make_halves(self, lanes):
        return [HalfStep(self, lanes[0])]


class HalvesOnce(InHalves):
    def make_halves(self, lanes):
        return (HalfStep(self, lane) for lane in lanes)


class ItselfAndAHalf(InHalves):
    def make_halves(self, lanes):
        return [self, HalfStep(self, lanes[1])]


# --- the order of the streams ----------------------------------------------------------------------


class OneAfterTheOther(InHalves):
    def beside_each_other(self, first, second):
        return [first(), second()]


class ForgetsTheFork(InHalves):
    def beside_each_other(self, first, second):
        main, side = self.streams.main, self.streams.side
        with self.streams.launching_in(side):
            there = second()
        here = first()
        main.wait_stream(side)
        return [here, there]


class ForksTooLate(InHalves):
    def beside_each_other(self, first, second):
        main, side = self.streams.main, self.streams.side
        here = first()
        side.wait_stream(main)
        with self.streams.launching_in(side):
            there = second()
        main.wait_stream(side)
        return [here, there]


class JoinsTooEarly(InHalves):
    def beside_each_other(self, first, second):
        main, side = self.streams.main, self.streams.side
        side.wait_stream(main)
        with self.streams.launching_in(side):
            there = second()
        main.wait_stream(side)
        return [first(), there]


class JoinsTheOtherWay(InHalves):
    def beside_each_other(self, first, second):
        main, side = self.streams.main, self.streams.side
        side.wait_stream(main)
        with self.streams.launching_in(side):
            there = second()
        here = first()
        side.wait_stream(main)
        return [here, there]


class MainWhileInTheSide(InHalves):
    """`streams.main` is the current stream: inside of the block that is the side stream."""

    def beside_each_other(self, first, second):
        with self.streams.launching_in(self.streams.side):
            self.streams.side.wait_stream(self.streams.main)
            there = second()
        here = first()
        self.streams.main.wait_stream(self.streams.side)
        return [here, there]


class BothInTheSide(InHalves):
    def beside_each_other(self, first, second):
        main, side = self.streams.main, self.streams.side
        side.wait_stream(main)
        with self.streams.launching_in(side):
            there, here = second(), first()
        main.wait_stream(side)
        return [here, there]


class SwapsTheHalves(InHalves):
    def beside_each_other(self, first, second):
        return super().beside_each_other(first, second)[::-1]


class CallsNeither(InHalves):
    def beside_each_other(self, first, second):
        return [first, second]


class FirstAlone(InHalves):
    def beside_each_other(self, first, second):
        return first()


class TheHostWaits(InHalves):
    def beside_each_other(self, first, second):
        main, side = self.streams.main, self.streams.side
        side.wait_stream(main)
        with self.streams.launching_in(side):
            there = second()
        here = first()
        side.synchronize()
        return [here, there]


class NoLanes(FusedDeviceStep):
    def __init__(self, slots, network, lanes):
        super().__init__(slots, network, *lanes[0])


class Unwritten(InHalves):
    def make_halves(self, lanes):
        not_attempted()


class ReturnsNothing(InHalves):
    def joined(self, outputs):
        pass


ORDER = r"rows keep their order: row \d of \d \(slot \d\), number \d+ is -?[\d.]+, expected -?[\d.]+\."
ALL = r"the halves are all of the batch: a batch of {} comes out of the layers as {}, expected \({}, 32\)"
ALONE = (
    r"a large batch goes through the layers in two halves beside each other: of 4 rows, .* none is in the "
)
BEHIND = r"neither half waits for the other: embed in the {} stream waits for 11 of the 11 kernels of"
READS = r"a kernel waits for what it reads: {} in the {} stream reads {}, which .* writes, without a wait"
CUT = "a large batch is cut in two: "
SLOTS = "the halves are all of the batch: of the slots "
OWN = "each half has a step of its own: `make_halves` "
BOTH = r"both halves are launched: `beside_each_other` returns {}, expected \[Tensor, Tensor\]"
WRONG = {
    OnePart: CUT + r"of 4 rows, with `least_rows` 4, `cut` makes 1 part, expected 2\.",
    EvenAndOdd: ORDER + r" It is row 2 of the batch\.",
    LosesTheOddRow: SLOTS + r"\[0, 1, 2, 3, 4\] `cut` makes \[0, 1\] and \[2, 3\]\.",
    TheOddRowTwice: SLOTS + r"\[0, 1, 2, 3, 4\] `cut` makes \[0, 1, 2\] and \[2, 3, 4\]\.",
    SameHalfTwice: SLOTS + r"\[0, 1, 2, 3\] `cut` makes \[0, 1\] and \[0, 1\]\.",
    AllInBoth: SLOTS + r"\[0, 1, 2, 3\] `cut` makes \[0, 1, 2, 3\] and \[0, 1, 2, 3\]\.",
    WithoutPadding: SLOTS + r".* Each row is in one half, also the odd one, and those that pad the batch\.",
    CutsNothing: CUT + "`cut` returns NoneType, expected a list of two tensors of slots",
    ListsOfNumbers: CUT + "`cut` returns a list of 2: list, list, expected a list of two tensors",
    JoinedTheOtherWay: ORDER + r" It is row 2 of the batch\.",
    JoinedAside: ALL.format(4, r"\(2, 64\)", 4),
    FirstHalfAlone: ALL.format(4, r"\(2, 32\)", 4),
    OneRowAndTheRest: r"the halves are equal, or one row apart: of 4 rows 1 are in the main stream and 3 in",
    RowsAsAView: CUT + "`cut` returns Tensor, expected a list of two tensors of slots",
    ThreeParts: CUT + r"of 5 rows, with `least_rows` 4, `cut` makes 3 parts, expected 2\.",
    AStackOfHalves: r"^latency raised RuntimeError: stack expects each tensor to be equal size",
    CutsSmallBatches: r"a small batch goes through the layers as a whole: one of 3 is cut, and `least_rows`",
    SharesAWorkspace: r"has for itself: attention in the main stream uses attention's workspace of lane 0",
    SharesAttention: r"has for itself: attention in the main stream uses attention's workspace of lane 0",
    SharesKernels: r"linear_residual in the main stream uses the split-K workspace of lane 0, while line",
    WeightsTwice: r"weights are in memory once: norm_linear 0 of the two halves reads two weights",
    OneHalf: OWN + r"returns a list of 1: HalfStep, expected a list of 2 steps, one per lane\.",
    HalvesOnce: OWN + "returns generator, expected a list of 2 steps",
    ItselfAndAHalf: OWN + "returns the step itself, which would cut its half again",
    OneAfterTheOther: ALONE + "side stream",
    ForgetsTheFork: READS.format("embed", "side", r"slots\.(context_lens|last_token_ids)"),
    ForgetsTheJoin: READS.format("cat", "main", r"a tensor \[2, 32\], made by linear_residual"),
    ForksTooLate: BEHIND.format("side"),
    JoinsTooEarly: BEHIND.format("main"),
    JoinsTheOtherWay: READS.format("cat", "main", r"a tensor \[2, 32\], made by linear_residual"),
    MainWhileInTheSide: READS.format("embed", "side", r"slots\.(context_lens|last_token_ids)"),
    BothInTheSide: ALONE + "main stream",
    SwapsTheHalves: ORDER + r".* `beside_each_other` returns the first half's output first\.",
    CallsNeither: BOTH.format(r"\[partial, partial\]"),
    FirstAlone: BOTH.format("Tensor"),
    TheHostWaits: r"streams wait for each other, and the host for neither: `synchronize` makes the host wait",
    NoLanes: r"goes through the layers in two halves: NoLanes has no lanes\. Your class has LanedDeviceStep",
    Unwritten: r"^latency: not attempted yet\.$",
    ReturnsNothing: ALL.format(4, "NoneType", 4),
}


class ByIndex(InHalves):
    """A right part: the other half has the odd row."""

    def cut(self, slot_mapping):
        half = len(slot_mapping) // 2
        return slot_mapping[:half], slot_mapping[half:]

    def joined(self, outputs):
        return torch.vstack(outputs)

    def make_halves(self, lanes):
        return [HalfStep(self, lane) for lane in reversed(lanes)]


class ByEvents(InHalves):
    """A right part: the first half is the side stream's, and streams wait for events."""

    def beside_each_other(self, first, second):
        main, side = self.streams.main, self.streams.side
        side.wait_event(main.record_event())
        with self.streams.launching_in(side):
            here = first()
            end = side.record_event()
        there = second()
        main.wait_event(end)
        return [here, there]


class FirstHalfFirst(InHalves):
    """A right part: the fork is in front of both."""

    def beside_each_other(self, first, second):
        main, side = self.streams.main, self.streams.side
        side.wait_stream(main)
        here = first()
        with self.streams.launching_in(side):
            there = second()
        main.wait_stream(side)
        return [here, there]


class InPlace(InHalves):
    """A right part: rows are copied to a tensor for all."""

    def joined(self, outputs):
        whole = outputs[0].new_empty(sum(map(len, outputs)), outputs[0].shape[1])
        whole[: len(outputs[0])] = outputs[0]
        whole[len(outputs[0]) :] = outputs[1]
        return whole


RIGHT = (LanedDeviceStep, InHalves, ByIndex, ByEvents, FirstHalfFirst, InPlace)


@pytest.mark.parametrize("part", WRONG, ids=lambda part: part.__name__)
def test_a_wrong_part_is_refused_by_the_contract_that_it_breaks(here, part):
    report = here.check(latency=part)
    assert not report.ok and re.search(WRONG[part], report.text), report


@pytest.mark.parametrize("part", RIGHT, ids=lambda part: part.__name__)
def test_a_right_part_passes_in_whatever_clothes(here, part):
    report = here.check(latency=part)
    assert report.ok and report.text.startswith("latency: right."), report
