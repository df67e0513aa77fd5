"""Lesson 11's gate: likely mistakes in the hints are refused by what they break, and right ways pass."""

import pytest
from gate_tests import mistake_tests

from labkit.paths import ROOT

pytestmark = pytest.mark.slow

HELD, ROWS, WORKSPACES, LANES = range(4)
CUT, HALVES = "slot_mapping.chunk(2)", "[HalfStep(self, lane) for lane in lanes]"
OWN_WEIGHTS = "[InHalves.__mro__[2](self.slots, self.network, *lane) for lane in lanes]"
BY_INDEX = "(slot_mapping[: len(slot_mapping) // 2], slot_mapping[len(slot_mapping) // 2 :])"
FORK, HERE, JOIN = "side.wait_stream(main)", "        here = first()\n", "main.wait_stream(side)"
SIDE = f"""        {FORK}
        with self.streams.launching_in(side):
            there = second()
"""
LOADS = "program.load(weight, rows)"
BY_ROW = "torch.stack([program.load(weight, slice(n, n + 1))[0] for n in range(rows.start, rows.stop)])"
WAITS = "    program.wait()\n"
MISTAKES = [
    (HELD, WAITS, "    x = program.load(x)\n    program.wait()\n", "makes [0.0, 0.0], expected ["),
    (HELD, WAITS, "", "program 0 of 4 never calls wait()"),
    (HELD, LOADS, "program.load(weight)[rows]", "has loaded rows [0, 1, 2, 3, 4, 5, 6, 7] of the weight"),
    (HELD, LOADS, BY_ROW, ""),
    (ROWS, CUT, "[slot_mapping[i::2].contiguous() for i in range(2)]", "`cut` makes [0, 2] and [1, 3]."),
    (ROWS, CUT, "slot_mapping.split(len(slot_mapping) // 2)[:2]", "`cut` makes [0, 1] and [2, 3]."),
    (ROWS, CUT, "[slot_mapping[:1], slot_mapping[1:]]", "`cut` makes [0] and [1, 2, 3]."),
    (ROWS, CUT, BY_INDEX, ""),
    (ROWS, "cat(outputs)", "cat(outputs[::-1])", "row 0 of 4 comes out as row 2 of the batch."),
    (WORKSPACES, HALVES, OWN_WEIGHTS, "weights are in memory once"),
    (WORKSPACES, "in lanes]", "in reversed(lanes)]", ""),
    (LANES, JOIN, "pass", "made by linear_residual"),
    (LANES, SIDE + HERE, HERE + SIDE, "embed in the side stream waits for 11 of the 11 kernels of"),
    (LANES, "[here, there]", "[here, second()]", "of 4 rows, 6 went into the layers, in 3 launches."),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(
    ROOT / "notebooks" / "11_hidden_latency.ipynb", MISTAKES
)
