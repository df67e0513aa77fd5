"""Lesson 09: a layer's kernels, and rounding."""

import inspect
import textwrap
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.engine import InferenceEngine
from labkit.kernels import fold_layer_norm, norm_linear_plain
from labkit.kernels.fused_linear import mean_and_rstd, row_statistics
from labkit.learn.lesson_09.splits import SplitThenMerge
from labkit.learn.lesson_09.steps import launch_norm_linear
from labkit.model import LanguageModel
from labkit.watch.launches import device_step_of

# --- a layer's kernels ----------------------------------------------------------------------------------

# The kernels of a fused layer, in order, each with the operations that it replaces.
STANDS_FOR = (
    ("norm_linear", ("layer_norm", "linear")),
    ("attention", ("attention",)),
    ("linear_residual", ("linear", "add")),
    ("norm_linear, GELU", ("layer_norm", "linear", "gelu")),
    ("linear_residual", ("linear", "add")),
)


def whose_kernels(engine: InferenceEngine) -> str:
    """Which of a fused step's two kernels of this lesson are the reader's, in a sentence."""
    step = device_step_of(engine)
    norm_linear, attention = step.kernels.norm_linear, step.attention.attention
    mine = {
        "norm_linear": getattr(norm_linear, "func", None) is launch_norm_linear,
        "merge": isinstance(attention, SplitThenMerge),
    }
    return ", ".join(f"{name}: {'yours' if is_mine else 'not yours'}" for name, is_mine in mine.items())


def excerpt(kernel: Callable, begins: str, ends: str) -> str:
    """The lines of a Triton kernel's source from the first that contains `begins` to the next that contains
    `ends`."""
    lines = inspect.getsource(getattr(kernel, "fn", kernel)).splitlines()
    first = next(i for i, line in enumerate(lines) if begins in line)
    last = next(i for i, line in enumerate(lines) if i > first and ends in line)
    return textwrap.dedent("\n".join(lines[first : last + 1]))


# --- what a LayerNorm in two values per row does to the rounding ---------------------------------------


def rows_like(ratio: float, num_rows: int = 16, K: int = 768, seed: int = 0) -> Tensor:
    """Random rows of standard deviation 1 and mean `ratio`: [num_rows, K] float64."""
    numbers = np.random.default_rng(seed).standard_normal((num_rows, K))
    return torch.from_numpy(numbers) + ratio


def variance_errors(ratios: Sequence[float]) -> pd.DataFrame:
    """Relative error of a float32 variance, the worst of some rows: a row per mean in standard deviations, a
    column per formula."""
    rows = {}
    for ratio in ratios:
        x = rows_like(ratio).float()
        K = x.shape[1]
        exact = x.double().var(dim=1, correction=0)
        in_parts = mean_and_rstd(row_statistics(x, 32), K, eps=0.0)[1] ** -2
        forms = {
            "mean of squares less square of the mean": x.square().mean(1) - x.mean(1).square(),
            "distances from the mean": (x - x.mean(1, keepdim=True)).square().mean(1),
            "the same in parts of 32, put together (rung 09)": in_parts,
        }
        rows[ratio] = {name: float(((v.double() - exact) / exact).abs().max()) for name, v in forms.items()}
    return pd.DataFrame.from_dict(rows, orient="index")


def fold_errors(ratios: Sequence[float], N: int = 64) -> pd.DataFrame:
    """Relative error of a LayerNorm and a linear layer in float16: a row per mean in standard deviations, a
    column per way to compute them.

    All products are summed in float32, as a GPU does.
    """
    generator = torch.Generator().manual_seed(0)
    K = 768
    weight = (torch.randn(N, K, generator=generator) * K**-0.5).half()
    norm_weight = (1 + 0.2 * torch.randn(K, generator=generator)).half()
    norm_bias = (0.2 * torch.randn(K, generator=generator)).half()
    layer = fold_layer_norm(norm_weight, norm_bias, 1e-5, weight, None)
    unrounded = layer._replace(column_sums=(weight.double() * norm_weight.double()).sum(1).float())
    rows = {}
    for ratio in ratios:
        x = rows_like(ratio, K=K).half()
        as_double = [t.double() for t in (norm_weight, norm_bias)]
        exact = F.layer_norm(x.double(), (K,), *as_double, 1e-5) @ weight.double().T
        normed = F.layer_norm(x.float(), (K,), norm_weight.float(), norm_bias.float(), 1e-5).half()
        statistics = row_statistics(x, 32)
        forms = {
            "rung 09 with sums of weights before they are rounded": norm_linear_plain(
                x, statistics, unrounded
            ),
            "LayerNorm, rounded, then the product": (normed.float() @ weight.float().T).half(),
            "the product, then two values per row (rung 09)": norm_linear_plain(x, statistics, layer),
        }
        size = exact.square().mean().sqrt()
        rows[ratio] = {n: float((o.double() - exact).square().mean().sqrt() / size) for n, o in forms.items()}
    return pd.DataFrame.from_dict(rows, orient="index")


@torch.inference_mode()
def largest_mean(model: LanguageModel, input_ids: Sequence[int]) -> float:
    """The largest absolute mean of a row before a LayerNorm, in its standard deviations, that the model has
    in this text."""
    ratios: list[float] = []

    def look(_: object, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].double()
        ratios.append(float((x.mean(-1) / x.std(-1, correction=0)).abs().max()))

    gpt2 = model.network
    hooks = [n.register_forward_pre_hook(look) for block in gpt2.h for n in (block.ln_1, block.ln_2)]
    try:
        ids = torch.tensor([list(input_ids)], device=model.device)
        gpt2.prefill(ids, torch.tensor([len(input_ids)], device=model.device))
    finally:
        for hook in hooks:
            hook.remove()
    return max(ratios)
