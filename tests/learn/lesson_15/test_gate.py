"""Lesson 15's gates: the hints' kernels with one likely mistake each are refused, with its sentence."""

import pytest
from gate_tests import mistake_tests
from skeletons import steps_of

from labkit.learn.lesson_15 import gate
from labkit.paths import ROOT

pytestmark = pytest.mark.slow

NOTEBOOK = ROOT / "notebooks" / "15_modern_model.ipynb"
STEPS = steps_of(NOTEBOOK)
RMS, GATED, ROTATION, GROUP, STEP = range(5)
ROOT_OF = "tl.rsqrt(mean_of_squares + eps)[:, None]"
IN_PAIRS = """    is_first = d % 2 == 0
    y = tl.load(heads + tl.where(is_first, d + 1, d - 1)[None, :], mask=mask, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + position * (D // 2) + d // 2, mask=d < D, other=0.0)
    sin = tl.load(sin_ptr + position * (D // 2) + d // 2, mask=d < D, other=0.0)
    return x * cos[None, :] + y * tl.where(is_first, -sin, sin)[None, :]"""
MISTAKES = [
    (RMS, ROOT_OF, "(1 / (tl.sqrt(mean_of_squares) + eps))[:, None]", "sqrt(mean(x^2) + eps)"),
    (RMS, "mean_of_squares + eps", "mean_of_squares", "is nan, expected 0.0000"),
    (RMS, "squares + counts * means * means", "squares", "add up to squares + counts * means * means"),
    (GATED, "tl.sigmoid(gate_tile) * up_tile", "tl.sigmoid(up_tile) * up_tile", "the first is the gate"),
    (ROTATION, STEPS[ROTATION].pieces[0], IN_PAIRS, "neighbours, numbers 2i and 2i + 1, are rotated"),
    (ROTATION, "d < half, -sin, sin)", "d < half, sin, -sin)", "x[d] * cos - x[d + D/2] * sin"),
    (ROTATION, "position * half + tl.where", "tl.where", "all by the angles of position 0"),
    (ROTATION, "= position * half", "= (position + 1) * half", "at cos and sin [position * D/2 + d]"),
    (GROUP, "g * GROUP + r", "g + r * G", "Query head h is of group h // (H / G)"),
    (GROUP, ', input_precision="ieee") * scale', ', input_precision="ieee")', "scale * its product with"),
    (GROUP, "r < GROUP", "g * GROUP + r < H", "several programs write query head 2"),
    (GROUP, 'tl.trans(keys), input_precision="ieee")', "tl.trans(keys))", "has no input_precision"),
    (GROUP, "        keys =", "        for _ in range(GROUP):\n            keys =", "value is read once"),
    (GROUP, STEPS[GROUP].pieces[2], "        acc = acc * correction[:, None]", "neighbouring query heads"),
    (ROTATION, "cos_ptr + angle, mask=d < D, other=0.0", "cos_ptr + angle", "read at offset 5 of cos_ptr"),
    (STEP, "for lane in lanes]", "for lane in lanes[:1]] + lanes[1:]", "group_kernel not among them"),
    (STEP, "rms_linear_kernel, gated", "gated_linear_kernel, gated", "not finite numbers), expected [103"),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(NOTEBOOK, MISTAKES)


def test_a_step_with_a_mistake_makes_other_tokens():
    assert gate.check_step(gate.DealtOut).text.startswith("step breaks a contract: tokens are transformers'")
