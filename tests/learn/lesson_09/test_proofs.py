"""Lesson 09's checkers: right kernels pass, and wrong ones are refused by what they compute wrongly."""

import re
from dataclasses import replace

import pytest

from labkit.kernels import triton_runtime, triton_status
from labkit.kernels.triton_runtime import tl, triton
from labkit.learn.lesson_09.proofs import check_merge, check_norm_linear, check_product
from labkit.learn.lesson_09.steps import gelu, load_parts, load_tile, store_tile

pytestmark = pytest.mark.slow


class With:
    """A kernel launched with one more constant: what is wrong in it."""

    def __init__(self, kernel, wrong):
        self.kernel, self.wrong = kernel, wrong

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.kernel[grid](*args, **kwargs, WRONG=self.wrong)


# --- a product in tiles ----------------------------------------------------------------------------------


@triton.jit
def product(
    x_ptr, weight_ptr, out_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WRONG: tl.constexpr = "",
):  # fmt: skip
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    if WRONG == "program":
        n = tl.arange(0, BLOCK_N)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        x = load_tile(x_ptr, m, k, M, K)
        w = load_tile(weight_ptr, n, k, N, K)
        if WRONG == "rounded":
            x, w = x.to(tl.float16).to(tl.float32), w.to(tl.float16).to(tl.float32)
        if WRONG == "last round":
            acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        if WRONG == "not transposed":
            w = tl.trans(w)
        if WRONG == "sum not kept":
            tl.dot(x, tl.trans(w), acc, input_precision="ieee")
        elif WRONG != "first round" or first == 0:
            acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    store_tile(out_ptr, m, n, M, N, acc)


ROUNDS = r"with x \[20, 150\] .* A program reads 64 inputs at a time: add the product of each round"
WRONG_PRODUCTS = {
    "rounded": r"with x \[3, 7\] .* All are nearly right, so inputs were rounded",
    "not transposed": "product raised ",
    "sum not kept": r"value 0 of 5 is 0\.0000, .* `tl\.dot` returns the sum and does not change `acc`",
    "last round": ROUNDS,
    "first round": ROUNDS,
    "program": r"with x \[20, 150\] .*, row 0 of 20, value 128 of 200 is ",
}


@pytest.mark.parametrize("wrong", WRONG_PRODUCTS)
def test_a_wrong_product_is_refused(wrong):
    report = check_product(With(product, wrong))
    assert not report.ok and re.search(WRONG_PRODUCTS[wrong], report.text), report


@triton.jit
def may_round(x, w, acc):
    return tl.dot(x, tl.trans(w), acc)


@triton.jit
def product_that_may_round(x, w, acc):  # refused before it is launched
    return may_round(x, w, acc)


def test_a_product_that_only_a_gpu_rounds_is_refused_by_its_source():
    assert "`tl.dot(x, tl.trans(w), acc)` has no input_precision='ieee'" in check_product(
        product_that_may_round
    ).text.replace("\n    ", " ")


@triton.jit
def product_without_dot(
    x_ptr, weight_ptr, out_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        x, w = load_tile(x_ptr, m, k, M, K), load_tile(weight_ptr, n, k, N, K)
        acc += tl.sum(x[:, None, :] * w[None, :, :], axis=2)
    store_tile(out_ptr, m, n, M, N, acc)


def test_a_product_of_sums_is_refused_though_its_values_are_right():
    told = " ".join(check_product(product_without_dot).text.split())
    assert "tensor cores: all values are right, but `tl.dot` is in the source 0 times, expected 1" in told


def test_a_right_product():
    assert check_product(product).text == "product: right. 3 shapes, each value."


# --- LayerNorm and linear layer --------------------------------------------------------------------------


@triton.jit
def norm_linear(
    x_ptr, parts_ptr, weight_ptr, column_sums_ptr, bias_ptr, out_ptr, eps, M, N, K, num_parts, width,
    GELU: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, WRONG: tl.constexpr = "",
):  # fmt: skip
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    squares_of_x = tl.zeros([BLOCK_M], tl.float32)
    for first in range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        x = load_tile(x_ptr, m, k, M, K)
        squares_of_x += tl.sum(x * x, axis=1)
        acc = tl.dot(x, tl.trans(load_tile(weight_ptr, n, k, N, K)), acc, input_precision="ieee")
    sums = tl.load(column_sums_ptr + n, mask=n < N, other=0.0)[None, :]
    bias = tl.load(bias_ptr + n, mask=n < N, other=0.0)[None, :]
    means, squares, counts = load_parts(parts_ptr, m, M, K, num_parts, width, BLOCK_P)
    mean = tl.sum(means * counts, axis=1) / K
    if WRONG == "mean of means":
        mean = tl.sum(means, axis=1) / num_parts
    apart = means - mean[:, None]
    variance = tl.sum(squares + counts * apart * apart, axis=1) / K
    if WRONG == "not counted":
        variance = tl.sum(squares + apart * apart, axis=1) / K
    elif WRONG == "well-known formula":
        variance = tl.maximum(squares_of_x / K - mean * mean, 0.0)
    if WRONG == "K - 1":
        variance = tl.sum(squares + counts * apart * apart, axis=1) / (K - 1)
    rstd = tl.rsqrt(variance + eps)[:, None]
    if WRONG == "eps outside":
        rstd = (1.0 / (tl.sqrt(variance) + eps))[:, None]
    elif WRONG == "no eps":
        rstd = tl.rsqrt(variance)[:, None]
    out = rstd * (acc - mean[:, None] * sums) + bias
    if WRONG == "no rstd":
        out = acc - mean[:, None] * sums + bias
    elif WRONG == "bias, too":
        out = rstd * (acc - mean[:, None] * sums + bias)
    elif WRONG == "mean without rstd":
        out = rstd * acc - mean[:, None] * sums + bias
    elif WRONG == "no mean":
        out = rstd * acc + bias
    if GELU and WRONG != "no GELU":
        out = gelu(out)
    store_tile(out_ptr, m, n, M, N, out)


WRONG_NORM_LINEARS = {
    "K - 1": r"rows of mean 0 and variance 1, .* squares / K and not squares / \(K - 1\), is 1",
    "bias, too": "rows of mean 0 and variance 9, .* and the bias is not",
    "no rstd": r"rows of mean 0 and variance 9, .* multiplied by 1 / sqrt\(variance \+ eps\)",
    "eps outside": r"variance 0\.00001, as eps, .* inside of the root",
    "no eps": r"variance 0\.00001, as eps, .* inside of the root",
    "no mean": "rows of mean 2 and variance 9, .* The mean is in every column of a row",
    "mean without rstd": "rows of mean 2 and variance 9, .* multiply the difference by 1 / sqrt",
    "no GELU": "a GELU after it, .* GELU comes last",
    "not counted": "3 parts per row, .* its count times",
    "mean of means": "3 parts per row, .* weight each mean by its count",
    "well-known formula": "rows whose mean is 3,000 times .* minus the square of the mean has no correct",
}


@pytest.mark.parametrize("wrong", WRONG_NORM_LINEARS)
def test_a_wrong_norm_linear_is_refused(wrong):
    report = check_norm_linear(With(norm_linear, wrong))
    assert not report.ok and re.search(WRONG_NORM_LINEARS[wrong], report.text), report


def test_a_right_norm_linear():
    assert check_norm_linear(norm_linear).text == "norm_linear: right. 7 kinds of rows, each value."


# --- a merge of parts ------------------------------------------------------------------------------------


@triton.jit
def merge(
    largest_ptr, totals_ptr, accs_ptr, out_ptr, num_parts, D,
    BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, WRONG: tl.constexpr = "",
):  # fmt: skip
    row = tl.program_id(0)
    s, d = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    in_parts = s < num_parts
    if WRONG == "forgets the last":
        in_parts = (s == 0) | (s < num_parts - 1)
    largest = tl.load(largest_ptr + row * num_parts + s, mask=in_parts, other=float("-inf"))
    totals = tl.load(totals_ptr + row * num_parts + s, mask=in_parts, other=0.0)
    accs = load_tile(accs_ptr + row * num_parts * D, s, d, num_parts, D)
    top = tl.max(largest, axis=0)
    if WRONG == "from 0":
        top = tl.maximum(top, 0.0)
    elif WRONG == "from the first":
        top = tl.sum(tl.where(s == 0, largest, 0.0), axis=0)
    weights = tl.exp(largest - top)
    if WRONG == "wrong sign":
        weights = tl.exp(top - largest)
    elif WRONG == "not weighed":
        weights = tl.where(in_parts, 1.0, 0.0)
    total = tl.sum(weights * totals, axis=0)
    out = tl.sum(weights[:, None] * accs, axis=0) / total
    if WRONG == "average":
        out = tl.sum(accs / totals[:, None], axis=0) / num_parts
    elif WRONG == "weighed outputs":
        means = tl.where(in_parts[:, None], accs / totals[:, None], 0.0)
        out = tl.sum(weights[:, None] * means, axis=0) / tl.sum(weights, axis=0)
    elif WRONG == "in logarithms":
        together = top + tl.log(tl.sum(weights * totals, axis=0))
        shares = tl.exp(largest + tl.log(totals) - together)
        out = tl.sum(shares[:, None] * (accs / totals[:, None]), axis=0)
    tl.store(out_ptr + tl.program_id(0) * D + d, out, mask=d < D)


WEIGHED = r"\[1\.0, 2\.0\].* Each part is scaled by its own largest score"
ADDED = r"\[1\.0, 1\.0\].* Add up the accs and the totals of all parts, and divide once"
WRONG_MERGES = {
    "forgets the last": ADDED,
    "average": ADDED,
    "weighed outputs": ADDED,
    "in logarithms": r"\[1\.0, 1\.0, 1\.0\].* places from num_parts on have no total to divide by",
    "not weighed": WEIGHED,
    "wrong sign": WEIGHED,
    "from 0": r"\[-200\.0, .* value 0 of 20 is nan, .* scale by the largest of them, not by 0",
    "from the first": r"value 0 of 20 is nan, .*",
}


@pytest.mark.parametrize("wrong", WRONG_MERGES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_wrong_merge_is_refused(wrong):
    report = check_merge(With(merge, wrong))
    assert not report.ok and re.search(WRONG_MERGES[wrong], report.text), report


def test_a_right_merge():
    assert check_merge(merge).text == "merge: right. 9 kinds of parts, each value."


# --- where nothing runs ----------------------------------------------------------------------------------


def test_nothing_is_right_where_no_kernel_runs(monkeypatch):
    monkeypatch.setattr(triton_runtime, "STATUS", replace(triton_status(), mode="off"))
    for check, kernel in ((check_product, product), (check_norm_linear, norm_linear), (check_merge, merge)):
        report = check(kernel)
        assert not report.ok and "raised TritonUnavailableError" in report.text
