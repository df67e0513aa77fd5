"""The gate of lesson 11: wrong parts are refused by the contract that they break, right ones pass."""

import pytest
import torch
from gate_tests import gate_tests

from labkit.engine.step.fused import FusedDeviceStep
from labkit.engine.step.lanes import HalfStep
from labkit.learn.lesson_11.halves import ForgetsTheJoin, InHalves

pytestmark = pytest.mark.slow


# --- rows ------------------------------------------------------------------------------------------


class EvenAndOdd(InHalves):
    def cut(self, slot_mapping):
        return [slot_mapping[::2].contiguous(), slot_mapping[1::2].contiguous()]


class LosesTheOddRow(InHalves):
    def cut(self, slot_mapping):
        half = len(slot_mapping) // 2
        return [slot_mapping[:half], slot_mapping[half : 2 * half]]


class JoinedTheOtherWay(InHalves):
    def joined(self, outputs):
        return torch.cat(outputs[::-1])


class OneRowAndTheRest(InHalves):
    def cut(self, slot_mapping):
        return [slot_mapping[:1], slot_mapping[1:]]


class CutsSmallBatches(InHalves):
    def through_layers(self, slot_mapping, max_context_len):
        self.least_rows = 2
        return super().through_layers(slot_mapping, max_context_len)


# --- what the halves share -------------------------------------------------------------------------


class SharesAttention(InHalves):
    def make_halves(self, lanes):
        return [HalfStep(self, lanes[0]), HalfStep(self, lanes[1]._replace(attention=lanes[0].attention))]


class WeightsTwice(InHalves):
    def make_halves(self, lanes):
        return [FusedDeviceStep(self.slots, self.network, *lane) for lane in lanes]


# --- the order of the streams ----------------------------------------------------------------------


class OneAfterTheOther(InHalves):
    def beside_each_other(self, first, second):
        return [first(), second()]


class ForksTooLate(InHalves):
    def beside_each_other(self, first, second):
        main, side = self.streams.main, self.streams.side
        here = first()
        side.wait_stream(main)
        with self.streams.launching_in(side):
            there = second()
        main.wait_stream(side)
        return [here, there]


class LaunchesTwice(InHalves):
    """All that the side stream made is made once more, in the main stream."""

    def beside_each_other(self, first, second):
        main, side = self.streams.main, self.streams.side
        side.wait_stream(main)
        with self.streams.launching_in(side):
            second()
        first()
        main.wait_stream(side)
        return [first(), second()]


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


ORDER = r"rows keep their order: row \d of \d \(slot \d\), number \d+ is -?[\d.]+, expected -?[\d.]+\."
ALONE = (
    r"a large batch goes through the layers in two halves beside each other: of 4 rows, .* none is in the "
)
BEHIND = r"neither half waits for the other: embed in the {} stream waits for 11 of the 11 kernels of"
READS = r"a kernel waits for what it reads: {} in the {} stream reads {}, which .* writes, and nothing makes"
SLOTS = "the halves are all of the batch: of the slots "
BOTH = r"both halves are launched: `beside_each_other` returns {}, expected \[Tensor, Tensor\]"
WRONG = {
    EvenAndOdd: "a cut costs nothing: `cut` makes other tensors than slices of neighbours in slot_mapping",
    LosesTheOddRow: SLOTS + r"\[0, 1, 2, 3, 4\] `cut` makes \[0, 1\] and \[2, 3\]\.",
    JoinedTheOtherWay: ORDER + r" It is row 2 of the batch\.",
    OneRowAndTheRest: r"the halves are equal, or one row apart: of 4 rows 1 are in the main stream and 3 in",
    CutsSmallBatches: r"a small batch goes through the layers as a whole: one of 3 is cut, and `least_rows`",
    SharesAttention: r"of their own: attention in the main stream uses attention's workspace of lane 0",
    WeightsTwice: r"weights are in memory once: norm_linear 0 of the two halves reads two different weights",
    LaunchesTwice: r"each half is launched once: of 4 rows, 8 went into the layers, in 4 launches",
    OneAfterTheOther: ALONE + "side stream",
    ForgetsTheJoin: READS.format("cat", "main", r"a tensor \[2, 32\], made by linear_residual"),
    ForksTooLate: BEHIND.format("side"),
    FirstAlone: BOTH.format("Tensor"),
    TheHostWaits: r"streams wait for each other, and the host waits for neither: `synchronize` makes",
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


RIGHT = (ByIndex, ByEvents)


test_wrong_parts, test_right_parts = gate_tests("11", "latency", WRONG, RIGHT)
