"""Lesson 09: what each of the reader's kernels must compute, value by value, and a layer in few kernels."""

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.engine import CacheConfig, InferenceEngine
from labkit.kernels import fold_layer_norm, paged_attention_append_plain, require_triton
from labkit.kernels.fused_linear import row_statistics
from labkit.ladder import LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, Gate, Report, proven, small_model
from labkit.learn.gates.resident import MIXED
from labkit.learn.gates.same_step import steps_proven
from labkit.learn.lesson_09.steps import (
    TILE,
    TenKernelStep,
    launch_merge,
    launch_norm_linear,
    launch_product,
    merge_plain,
    whose_kernels,
)
from labkit.learn.steps import noted
from labkit.watch.launches import device_step_of, log_step
from labkit.watch.replaced import replaced
from labkit.watch.steady import steady_decode, steady_prompts

CLOSE = 1e-3  # of a number of size 1: sums in another order are right, too; rounded inputs are not

PRODUCT = "each value of the product is the sum of a row of x times a row of the weight"
NORM_LINEAR = "norm_linear is linear(layer_norm(x))"
MERGE = "merged, the parts are one softmax over all tokens"


def checked(name: str, prove: Callable[[Any], None], kernel: Any, proof: str) -> Report:
    """The report on the kernel of a step, which `prove` looks at."""
    trials = [require_triton, partial(check_precision, kernel), partial(prove, kernel)]
    return noted(proven(name, trials, proof), "09", name, kernel)


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


def check_precision(kernel: Any) -> None:
    """Raise BrokenContract for a `tl.dot` that may round float32 to TF32, which only a GPU does."""
    for call in dots_of(kernel):
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if "tf32" in given.get("input_precision", "tf32") and given.get("allow_tf32") != "False":
            raise BrokenContract(
                f"float32 is multiplied as float32: `{ast.unparse(call)}` has no input_precision='ieee'. "
                "Without it a GPU may round float32 inputs to TF32. A CPU never does, so here no value shows "
                "it."
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
    """Rows of a LayerNorm: in words, themselves, columns of a part, whether a GELU follows, and a hint."""
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


# --- the step that they are part of ----------------------------------------------------------------------

PROMPTS = ((1, 2, 3), (7, 8))  # of the step whose kernels are counted
PER_LAYER, AROUND = 5, 5  # kernels, at most
LONG_AND_SHORT = (3, 9, 20, 50)  # tokens of the prompts of the step whose attention is compared
ATTENTION = "attention is one softmax over all of a request's tokens"


def right_attention(build: Build) -> None:
    """A trial: attention over texts of several lengths is what its plain twin is, however it is launched."""
    engine = engine_of(build)
    step = device_step_of(engine)
    with (
        replaced(step.attention, "attention", attention_proven),
        replaced(engine.decode_step, "device_step", lambda _: step),  # not a graph of it, captured before
        steady_decode(engine, steady_prompts(4, LONG_AND_SHORT), warmup_steps=1),
    ):
        pass


def attention_proven(inner: Callable) -> Callable:
    """A step's attention that is compared with its plain twin in every call."""

    def attention(*arguments: Any) -> Tensor:
        query, key, value, k_cache, v_cache, *others = arguments
        expected = paged_attention_append_plain(query, key, value, k_cache.clone(), v_cache.clone(), *others)
        made = inner(*arguments)
        _, context_lens, slot_mapping, _ = others
        lengths = context_lens[slot_mapping].tolist()
        where = f"in a step whose requests have {lengths} tokens in the cache"
        hint = "The parts of all programs count, each scaled by its own largest score."
        check_numbers(ATTENTION, where, made.flatten(1), expected.flatten(1), hint, "request")
        return made

    return attention


def engine_of(build: Build) -> InferenceEngine:
    """An engine with blocks of 4 tokens."""
    return build(small_model(), dtype=torch.float32, cache=CacheConfig(block_size=4, prefix_cache=False))


def few_kernels(build: Build) -> None:
    """Raise BrokenContract if a greedy step is more kernels than five per layer and five around them.

    Attention counts as one, even if it is a kernel for parts and one that merges them.
    """
    engine = engine_of(build)
    kernels: Counter[str] = Counter()
    for launch in log_step(engine, PROMPTS).launches:
        kernels[launch.name] += 1 if launch.name == "attention" else launch.kernels
    num_layers = engine.model.config.num_layers
    count, most = kernels.total(), PER_LAYER * num_layers + AROUND
    if count > most:
        told = ", ".join(f"{name} {number}" for name, number in kernels.most_common())
        raise BrokenContract(
            f"a step is few kernels: {count} for {num_layers} layers, at most {most}, five per layer and "
            f"five around them. Launched were: {told}. Work that a neighbouring kernel can do, such as "
            "norm, bias, GELU and residual, needs no launch of its own. (Attention counts as one, and so "
            "does each of FusedDeviceStep's `kernels`.)"
        )


def own_kernels(build: Build) -> None:
    """Raise BrokenContract for the reader's step if it runs a kernel of the package's where the reader has
    written one. A step that is built on none of the lesson's may run either."""
    engine = engine_of(build)
    if isinstance(device_step_of(engine), TenKernelStep) and "not yours" in (told := whose_kernels(engine)):
        raise BrokenContract(
            f"the step runs the kernels of steps 2 and 3: {told}. `with_mine` returns the attention and the "
            "kernels with yours in them: assign both, and pass them to `super().__init__`."
        )


GATE = Gate(
    ("layer_kernels",),
    LADDER["08"].options,
    watches=(steps_proven,),
    samplings=MIXED,
    trials=(right_attention,),
    costs=(few_kernels, own_kernels),
    interpreted=("layer_kernels",),
)
