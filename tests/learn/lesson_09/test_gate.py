"""Lesson 09's gate: likely mistakes in the hints are refused by what they break, and right ways pass."""

import pytest
from gate_tests import mistake_tests

from labkit.paths import ROOT

pytestmark = pytest.mark.slow

STEP = 3
INIT = "        super().__init__(slots, network, attention, kernels)\n"
LAYER = "    def layer("
PADDED = f"{INIT}        self._vocab_size = len(self.head.weight)\n"
BELOW = "TenKernelStep.__mro__[2]"
SEPARATE = f"    __call__, take_likeliest = {BELOW}.__call__, {BELOW}.take_likeliest\n\n{LAYER}"
ADVANCE = f"    def advance(self, token_ids, slot_mapping):\n        return token_ids\n\n{LAYER}"
HALF = """        x, statistics = kernels.linear_residual(attended, *layer.attention_out, x)
        inner = kernels.norm_linear(x, """
OLD = HALF.replace("x, statistics =", "between, statistics =").replace("norm_linear(x", "norm_linear(between")
MISTAKES = [
    (STEP, INIT, PADDED, "a step makes the plain step's tokens found row"),
    (STEP, HALF, OLD, "computed in front of this layer's attention"),
    (STEP, LAYER, SEPARATE, "40 for 2 layers, at most 15"),
    (STEP, LAYER, ADVANCE, "a step moves its requests on"),
    (STEP, "attention, kernels = with_mine", "with_mine", "norm_linear: not yours, merge: not yours."),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(
    ROOT / "notebooks" / "09_fused_and_split.ipynb", MISTAKES
)
