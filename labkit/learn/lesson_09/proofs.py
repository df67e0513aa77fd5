"""Lesson 09: what each of the reader's kernels must compute, value by value."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.kernels import (
    fold_layer_norm,
    require_triton,
)
from labkit.kernels.fused_linear import row_statistics
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Report, proven
from labkit.learn.lesson_09.steps import (
    TILE,
    launch_merge,
    launch_norm_linear,
    launch_product,
    merge_plain,
)
from labkit.learn.steps import noted

CLOSE = 1e-3  # of a number of size 1: sums in another order are right, too; rounded inputs are not

PRODUCT = "each value of the product is the sum of a row of x times a row of the weight"
NORM_LINEAR = "norm_linear is linear(layer_norm(x))"
MERGE = "merged, the parts are one softmax over all tokens"


def checked(name: str, prove: Callable[[Any], None], kernel: Any, proof: str) -> Report:
    """The report on the kernel of a step, which `prove` looks at."""

    def prove_kernel() -> None:
        require_triton()
        check_precision(kernel)
        prove(kernel)

    return noted(proven(name, [prove_kernel], proof), "09", name, kernel)


def check_numbers(
    contract: str, where: str, made: Tensor, expected: Tensor, hint: str, noun: str = "row"
) -> None:
    """Raise BrokenContract for the first number of a matrix that is not close to the expected one."""
    close = torch.isclose(made.double(), expected.double(), rtol=CLOSE, atol=CLOSE)
    for row, column in (~close).nonzero().tolist()[:1]:
        raise BrokenContract(
            f"{contract}: {where}, {noun} {row} of {len(made)}, value {column} of {made.shape[1]} is "
            f"{made[row, column].item():.4f}, expected {expected[row, column].item():.4f}. {hint}"
        )


def device() -> torch.device:
    """Where kernels run here."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Normally distributed numbers, the same on every device."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device())


# --- a product in tiles ---------------------------------------------------------------------------------


def check_product(kernel: Any) -> Report:
    """Whether a kernel multiplies matrices that are no whole number of tiles."""
    return checked("product", _prove_product, kernel, "each value of a product in several tiles.")


def _prove_product(kernel: Any) -> None:
    x, weight = drawn(20, 150), drawn(200, 150, seed=1)
    made = launch_product(kernel, x, weight)
    hint = (
        "A tile of x is [rows, inputs] and one of the weight [outputs, inputs]: transpose the second. Add "
        "the product of each round to `acc`."
    )
    if not made.any():
        hint = "`tl.dot` returns the sum and does not change `acc`: assign what it returns to `acc`."
    expected = (x.double() @ weight.double().T).float()
    check_numbers(PRODUCT, "with x [20, 150] and a weight [200, 150]", made, expected, hint)
    check_dots(kernel, at_least=1)


def check_precision(kernel: Any) -> None:
    """Raise BrokenContract for a `tl.dot` in a kernel's source that may round its inputs to TF32. Only on a
    GPU do numbers show it."""
    for call in dots_of(kernel):
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if "tf32" in given.get("input_precision", "tf32") and given.get("allow_tf32") != "False":
            raise BrokenContract(
                f"float32 is multiplied as float32: `{ast.unparse(call)}` has no input_precision='ieee'. "
                "Without it a GPU may round float32 inputs to TF32. A CPU never does, so here no value shows "
                "it."
            )


def check_dots(kernel: Any, at_least: int) -> None:
    """Raise BrokenContract if a kernel's source has fewer products of tiles: other sums have the same values,
    but only `tl.dot` uses tensor cores."""
    count = len(list(dots_of(kernel)))
    if count < at_least:
        raise BrokenContract(
            f"tiles are multiplied by tensor cores: all values are right, but `tl.dot` is in the source "
            f"{count} times, expected {at_least}. Sums of elementwise products do not use tensor cores."
        )


def dots_of(kernel: Any) -> Iterator[ast.Call]:
    """Each `tl.dot` in the source of a Triton kernel and of those that it calls."""
    function = getattr(kernel, "fn", None)
    if function is None:
        return
    for call in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "tl.dot":
            yield call
        elif isinstance(call, ast.Call):
            yield from dots_of(function.__globals__.get(ast.unparse(call.func)))


# --- LayerNorm and linear layer -------------------------------------------------------------------------


def _rows() -> Iterator[tuple[str, Tensor, int, bool, str]]:
    """Rows that go into a LayerNorm: in words, themselves, the columns of a part of their statistics, whether
    a GELU comes behind, and what may be wrong there."""
    normal = drawn(3, 40)
    normal = (normal - normal.mean(1, keepdim=True)) / normal.std(1, correction=0, keepdim=True)
    yield (
        "rows of mean 0 and variance 9", 3 * normal, 40, False,
        "The whole sum is multiplied by 1 / sqrt(variance + eps), and the bias is not. The variance is "
        "squares / K.",
    )  # fmt: skip
    yield (
        "rows of mean 2 and variance 9", 3 * normal + 2, 40, False,
        "The mean is in every column of a row, so the product contains it once for each column: subtract "
        "mean times column_sums, and multiply the difference by 1 / sqrt(variance + eps).",
    )  # fmt: skip
    yield (
        "a mean of 300, 3 parts per row, the last one shorter, and a GELU after it",
        300 + drawn(20, 40) + torch.arange(40, device=device()) / 9, 16, True,
        "Parts differ in their means: weight each mean by its count. Then add to the squares, for each part, "
        "its count times the squared distance of its mean from the row's. GELU comes last.",
    )  # fmt: skip


def check_norm_linear(kernel: Any) -> Report:
    """Whether a kernel is a LayerNorm and a linear layer, for rows of any mean and variance."""
    return checked("norm_linear", _prove_norm_linear, kernel, "each value of several kinds of rows.")


def _prove_norm_linear(kernel: Any) -> None:
    for words, x, width, gelu, hint in _rows():
        K, N = x.shape[1], 200
        norm = 1 + 0.2 * drawn(K, seed=1), 0.2 * drawn(K, seed=2)
        layer = fold_layer_norm(*norm, 1e-5, drawn(N, K, seed=3) * K**-0.5, drawn(N, seed=4))
        product = F.layer_norm(x.double(), x.shape[1:], eps=layer.eps) @ layer.weight.double().T + layer.bias
        expected = F.gelu(product, approximate="tanh") if gelu else product
        made = launch_norm_linear(kernel, x, row_statistics(x, width), layer, gelu, tile=TILE)
        check_numbers(NORM_LINEAR, f"with {words}", made, expected, hint)


# --- a merge of parts -----------------------------------------------------------------------------------

EMPTY = float("-inf")
MERGE_CASES = (  # the largest score of each part, of one row, and what may be wrong there
    ((1.0, 1.0, 1.0), "Add up the accs and the totals of all parts, and divide once, at the end."),
    ((0.0, 3.0, 1.0, 2.0, -1.0), "Each part is scaled by its own largest score: exp(largest - the largest of "
                                 "all) brings its acc and its total to the common one."),
    ((200.0, 199.0, 198.0), "exp(200) is too large for a float32: subtract the largest score before exp."),
    ((EMPTY, -200.0, -201.0), "Scale by the largest of all scores, which may be far below 0. A program "
                              "without tokens leaves -inf, 0 and zeros: its weight must be 0."),
)  # fmt: skip


def check_merge(kernel: Any) -> Report:
    """Whether a kernel merges partial softmaxes, of any number of parts, some without a token."""
    return checked("merge", _prove_merge, kernel, f"{len(MERGE_CASES)} kinds of parts, each value.")


def _prove_merge(kernel: Any) -> None:
    for numbers, hint in MERGE_CASES:
        largest = torch.tensor([numbers, numbers[::-1]], device=device())  # two rows
        totals = 1 + drawn(*largest.shape).abs()
        accs = 3 * drawn(*largest.shape, 20, seed=1)
        empty = largest == EMPTY
        totals[empty], accs[empty] = 0.0, 0.0
        expected = merge_plain(largest.double(), totals.double(), accs.double())
        with np.errstate(over="ignore"):  # of a wrong kernel, or of places without a part
            made = launch_merge(kernel, largest, totals, accs)
        where = f"with parts whose largest scores are {list(numbers)} (in row 1 the other way round)"
        check_numbers(MERGE, where, made, expected, hint)
