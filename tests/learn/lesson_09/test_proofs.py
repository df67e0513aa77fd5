"""Lesson 09's checkers: likely mistakes in the hints are refused by what they break, and right ways pass."""

from dataclasses import replace

import pytest
from gate_tests import mistake_tests

from labkit.kernels import triton_runtime, triton_status
from labkit.learn.lesson_09.gate import check_merge, check_norm_linear, check_product
from labkit.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

PRODUCT, NORM, MERGE, _ = range(4)
OUT = "rstd[:, None] * (acc - mean[:, None] * column_sums[None, :])"
VARIANCE = "tl.sum(squares + counts * apart * apart, axis=1) / K"
FORMULA = "tl.sum(squares + counts * means * means, axis=1) / K - mean * mean"
LARGEST = "tl.max(largest, axis=0)"
WEIGHTS = f"tl.exp(largest - {LARGEST})"
MERGED = "tl.sum(weights[:, None] * accs, axis=0) / tl.sum(weights * totals, axis=0)"
OF_ITSELF = MERGED.replace("accs", "totals[:, None] * (accs / totals[:, None])")
MISTAKES = [
    (PRODUCT, "tl.trans(w)", "w", "found raised AssertionError"),
    (PRODUCT, "acc = tl.dot", "tl.dot", "`tl.dot` returns the sum and does not change `acc`"),
    (PRODUCT, "range(0, K, BLOCK_K)", "range(0, K, K)", "Add the product of each round to `acc`"),
    (PRODUCT, "tl.program_id(1) * BLOCK_N + ", "", "row 0 of 20, value 128 of 200 is "),
    (PRODUCT, ', input_precision="ieee"', "", "has no input_precision='ieee'"),
    (NORM, f"{VARIANCE}\n", f"{VARIANCE.replace('K', '(K - 1)')}\n", "The variance is squares / K."),
    (NORM, f"{OUT} + bias[None, :]", f"{OUT[:-1]} + bias[None, :])", "and the bias is not"),
    (NORM, OUT, OUT.replace("(", "").replace(")", ""), "multiply the difference by 1 / sqrt"),
    (NORM, "out = gelu(out)", "out = out", "GELU comes last"),
    (NORM, "counts * apart", "apart", "its count times"),
    (NORM, VARIANCE, FORMULA, "its count times the squared distance"),
    (MERGE, "s < num_parts, other=float", "(s == 0) | (s < num_parts - 1), other=float", "and divide once"),
    (MERGE, MERGED, OF_ITSELF, "[1.0, 1.0, 1.0] (in row 1 the other way round)"),
    (MERGE, WEIGHTS, "tl.where(s < num_parts, 1.0, 0.0)", "scaled by its own largest score"),
    (MERGE, LARGEST, f"tl.maximum({LARGEST}, 0.0)", "which may be far below 0"),
    (MERGE, LARGEST, "tl.sum(tl.where(s == 0, largest, 0.0), axis=0)", "value 0 of 20 is nan"),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(
    ROOT / "notebooks" / "09_fused_and_split.ipynb", MISTAKES
)


def test_nothing_is_right_where_no_kernel_runs(shell, monkeypatch):
    monkeypatch.setattr(triton_runtime, "STATUS", replace(triton_status(), mode="off"))
    checks = {"product": check_product, "norm_linear": check_norm_linear, "merge": check_merge}
    for name, check in checks.items():
        report = check(shell.user_ns[f"{name}_kernel"])
        assert not report.ok and "raised TritonUnavailableError" in report.text
