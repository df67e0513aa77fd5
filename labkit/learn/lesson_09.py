"""Lesson 09: the kernels of a step, LayerNorm in two numbers per row, sums that arrive in any order, a
softmax in shares, recorded kernels, and the exercises."""

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.bench.limit import step_limit
from labkit.engine import CacheConfig, InferenceEngine
from labkit.engine.step.fused import PLAIN, TRITON, VOCABULARY_MULTIPLE, FusedKernels
from labkit.kernels import (
    SplitWorkspace,
    fold_layer_norm,
    norm_linear_plain,
    num_splits,
    paged_attention_append_plain,
    paged_attention_append_split_triton,
    triton_status,
)
from labkit.kernels.fused_linear import mean_and_rstd, row_statistics, tile_of
from labkit.kernels.paged_attention_append import TOKENS_AT_A_TIME
from labkit.learn.exercise import Case, Exercise
from labkit.model import GPT2Config, LanguageModel
from labkit.model.checkpoint import RANDOM_CONFIGS, random_network
from labkit.model.tokenizer import WordTokenizer
from labkit.options import EngineOptions
from labkit.results import AttentionTimeRecord, DeviceTimeRecord, TracedStep
from labkit.results.attention_time import ONE_PROGRAM, SPLIT
from labkit.results.kernels import (
    ATTENTION,
    PRODUCTS,
    SPLIT_K_SUMS,
    group_counts,
    group_us,
    slowest_single,
)
from labkit.watch import log_step

MULTIPROCESSORS = 132  # of an H100

# --- the kernels of a step, and what passes between them ---------------------------------------------------

# The kernels of a fused layer, in order, each with the operations that it replaces.
STANDS_FOR = (
    ("norm_linear", ("layer_norm", "linear")),
    ("attention", ("attention",)),
    ("linear_residual", ("linear", "add")),
    ("norm_linear, GELU", ("layer_norm", "linear", "gelu")),
    ("linear_residual", ("linear", "add")),
)


def smallest_logit_gap(engines: Sequence[InferenceEngine], prompts: Sequence[Sequence[int]]) -> float:
    """The smallest gap between the logits of the best two tokens of a row, over the largest difference
    between two engines' logits of the same step. Far above 1, no token can change."""
    V = engines[0].model.config.vocab_size
    one, other = (log_step(engine, prompts).products[-1].flatten(0, -2)[:, :V] for engine in engines)
    best = one.double().topk(2, dim=1).values
    return float((best[:, 0] - best[:, 1]).min() / (one.double() - other.double()).abs().max())


@torch.inference_mode()
def partings(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    one: Sequence[Sequence[int]],
    other: Sequence[Sequence[int]],
    dtype: torch.dtype,
) -> pd.DataFrame:
    """Where two engines' tokens first differ, a row per prompt: the gap between the two tokens' logits in the
    model's own precision, and the distance between neighbouring numbers of `dtype` there."""
    rows = []
    for prompt, tokens, others in zip(prompts, one, other, strict=True):
        at = next((i for i, pair in enumerate(zip(tokens, others, strict=True)) if pair[0] != pair[1]), None)
        if at is None:
            continue
        ids = torch.tensor([[*prompt, *tokens[:at]]], device=model.device)
        (logits,) = model.network.prefill(ids, torch.tensor([ids.shape[1]], device=model.device)).last_logits
        gap = abs(float(logits[tokens[at]] - logits[others[at]]))
        spacing = torch.finfo(dtype).eps * 2.0 ** np.floor(np.log2(abs(float(logits[tokens[at]]))))
        rows.append({"token": at, "gap in float32": gap, "neighbours are apart": float(spacing)})
    return pd.DataFrame(rows, columns=["token", "gap in float32", "neighbours are apart"])


# --- two numbers a row -------------------------------------------------------------------------------------


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
            "the product, then two numbers a row (rung 09)": norm_linear_plain(x, statistics, layer),
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


# --- many programs, one sum --------------------------------------------------------------------------------


def product_table(batch_sizes: Sequence[int], config: GPT2Config = RANDOM_CONFIGS["gpt2"]) -> pd.DataFrame:
    """Programs of each matrix product of a layer, a column per batch size: how many tiles there are, and by
    how many programs each is shared."""
    E, inner = config.n_embd, config.inner_dim
    products = {
        "qkv (norm_linear)": (3 * E, E),
        "attention's projection (linear_residual)": (E, E),
        "fc (norm_linear)": (inner, E),
        "MLP's projection (linear_residual)": (E, inner),
    }
    rows = {}
    for name, (N, K) in products.items():
        row = {}
        for M in batch_sizes:
            tile = tile_of(M, N, K, can_split="residual" in name)
            tiles = -(-M // tile.block_m) * -(-N // tile.block_n)
            row[f"B = {M}"] = f"{tiles}" if tile.split_k == 1 else f"{tiles} x {tile.split_k}"
        rows[name] = row
    return pd.DataFrame.from_dict(rows, orient="index")


class Sums(NamedTuple):
    """How many different float32 results the same parts gave, for two ways to add them."""

    added_on_arrival: int
    added_by_the_last: int


def sums_of_arrivals(num_parts: int, num_runs: int, seed: int = 0) -> Sums:
    """Add up the same parts many times, as programs that arrive in random order. Either each adds its part on
    arrival, as an atomic addition of floats would; or each stores its part, and the last program adds up all
    of them, from the first part on."""
    rng = np.random.default_rng(seed)
    parts = rng.integers(-(2**20), 2**20, num_parts).astype(np.float32) / np.float32(7)
    at_once, by_last = set(), set()
    for _ in range(num_runs):
        arrivals = rng.permutation(num_parts)
        at_once.add(add_up(parts[arrivals]))
        stored = np.empty_like(parts)
        for count, part in enumerate(arrivals, start=1):
            stored[part] = parts[part]
            if count == num_parts:
                by_last.add(add_up(stored))
    return Sums(len(at_once), len(by_last))


def add_up(parts: Sequence[np.float32]) -> np.float32:
    """The float32 sum of the parts, added in this order."""
    total = np.float32(0)
    for part in parts:
        total = np.float32(total + part)
    return total


# --- a softmax in shares -----------------------------------------------------------------------------------


def pieces_of(
    context_len: int, splits: int, by_turns: bool, max_tokens: int = 1024
) -> list[tuple[int, int, int]]:
    """The pieces in which one request's tokens are read: (first token, number of tokens, program) each.

    by_turns: a program takes every splits-th piece, as the kernel does; else it has a contiguous share of the
    longest context that there can be.
    """
    pieces = []
    for first in range(0, context_len, TOKENS_AT_A_TIME):
        program = first // TOKENS_AT_A_TIME % splits if by_turns else first // -(-max_tokens // splits)
        pieces.append((first, min(TOKENS_AT_A_TIME, context_len - first), program))
    return pieces


def split_table(batch_sizes: Sequence[int], num_heads: int = 12, max_tokens: int = 1024) -> pd.DataFrame:
    """Programs of one layer's attention, a column per batch size: one per request and head, and split."""
    splits = [num_splits(B, num_heads, max_tokens) for B in batch_sizes]
    rows = {
        "one program a request and head": [B * num_heads for B in batch_sizes],
        "splits": splits,
        "programs, split": [B * num_heads * s for B, s in zip(batch_sizes, splits, strict=True)],
    }
    columns = [f"B = {B}" for B in batch_sizes]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def split_of_a_run(batch_size: int, context_lens: Sequence[int], num_heads: int = 12) -> dict[str, float]:
    """What splitting does in a run with sequences of these lengths, step by step: programs per request and
    head, how many of them have tokens to read, and in how many steps it is only one."""
    splits = num_splits(batch_size, num_heads, RANDOM_CONFIGS["gpt2"].n_positions)
    at_work = [len({program for *_, program in pieces_of(n, splits, by_turns=True)}) for n in context_lens]
    return {
        "programs a request and head": splits,
        "of them with tokens to read, on average": round(float(np.mean(at_work)), 1),
        "% of steps in which it is one": round(100 * float(np.mean(np.array(at_work) == 1))),
    }


def attention_case(
    lengths: Sequence[int], device: torch.device | str = "cpu", H: int = 2, D: int = 16, block_size: int = 16
) -> dict[str, Tensor]:
    """Arguments of one layer's attention, by name, for requests with so many tokens in the cache; random
    numbers, the same in each call."""
    generator = torch.Generator().manual_seed(0)
    B = len(lengths)
    M = max(lengths) // block_size + 1
    table = torch.randperm(B * M, generator=generator).view(B, M)
    shapes = {
        **dict.fromkeys(("query", "key_new", "value_new"), (B, H, D)),
        **dict.fromkeys(("k_cache_layer", "v_cache_layer"), (B * M, H, block_size, D)),
    }
    case = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()} | {
        "block_table": table.int(),
        "context_lens": torch.tensor(lengths, dtype=torch.int32),
        "slot_mapping": torch.arange(B),
    }
    return {name: tensor.to(device) for name, tensor in case.items()}


class Attended(NamedTuple):
    """What attention computes, [B, H, D], and the layer's caches after it."""

    out: Tensor
    k_cache: Tensor
    v_cache: Tensor


def attend(case: Mapping[str, Tensor], splits: int | None = None) -> Attended:
    """Run attention on a copy of the cache. splits: programs per request and head; None for the plain twin,
    which also stands for the kernel where Triton cannot run."""
    caches = {name: case[name].clone() for name in ("k_cache_layer", "v_cache_layer")}
    arguments = {**case, **caches}
    if splits is None or triton_status().mode == "off":
        out = paged_attention_append_plain(**arguments, max_context_len=int(case["context_lens"].max()))
    else:
        B, H, D = case["query"].shape
        workspace = SplitWorkspace(B, H, D, case["query"].device)
        out = paged_attention_append_split_triton(**arguments, workspace=workspace, splits=splits)
    return Attended(out, *caches.values())


# --- the fused kernels, small ------------------------------------------------------------------------------


def fused_kernels() -> FusedKernels:
    """The fused Triton kernels, or their plain twins where Triton cannot run."""
    return PLAIN if triton_status().mode == "off" else TRITON


class SmallLayer(NamedTuple):
    """Rows and the weights of half a layer: a LayerNorm, a linear layer, another one and a residual."""

    x: Tensor  # [M, K]
    norm_weight: Tensor  # [K]
    norm_bias: Tensor
    weight: Tensor  # [N, K]
    bias: Tensor  # [N]
    weight_back: Tensor  # [K, N]
    bias_back: Tensor  # [K]


def small_layer(device: torch.device | str = "cpu", M: int = 3, K: int = 48, N: int = 64) -> SmallLayer:
    """Rows and weights in float32 for which all results are about 1 in size; the same in each call."""
    generator = torch.Generator().manual_seed(0)
    randn = partial(torch.randn, generator=generator)
    tensors = (
        randn(M, K),
        1 + 0.2 * randn(K),
        0.2 * randn(K),
        randn(N, K) * K**-0.5,
        randn(N),
        randn(K, N) * N**-0.5,
        randn(K),
    )
    return SmallLayer(*(tensor.to(device) for tensor in tensors))


def small_engine(options: EngineOptions, device: torch.device | str = "cpu") -> InferenceEngine:
    """An engine with a model of random weights, so small that Triton's interpreter runs a step in little
    time; its vocabulary size is odd, as GPT-2's is."""
    config = GPT2Config(
        vocab_size=97, n_positions=64, n_embd=32, n_layer=2, n_head=2, tie_word_embeddings=False
    )
    gpt2 = random_network(config, seed=0)
    for parameter in gpt2.parameters():
        parameter.data.mul_(20 if parameter.dim() == 2 else 1)
    model = LanguageModel("random:small", gpt2, WordTokenizer(config.vocab_size, None))
    return InferenceEngine(
        model, options, device=device, dtype=torch.float32, cache=CacheConfig(8, 16, prefix_cache=False)
    )


def copied_bytes(config: GPT2Config, itemsize: int = 2) -> dict[str, int]:
    """Bytes that a `FusedDeviceStep` keeps beside the model's own weights."""
    E, inner = config.n_embd, config.inner_dim
    outputs = 3 * E + inner  # of the two linear layers behind a LayerNorm
    rows = -(-config.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    return {
        "weights with a LayerNorm put in": config.n_layer * outputs * E * itemsize,
        "column sums and biases, float32": config.n_layer * outputs * 2 * 4,
        "output layer, padded": rows * E * itemsize,
    }


def alignment(row_bytes: int, row: int) -> int:
    """The largest power of 2, up to 128, that divides the address of a row, if row 0 lies at address 0."""
    start = row * row_bytes
    return min(128, start & -start) if start else 128


# --- recorded kernels --------------------------------------------------------------------------------------


def recorded_steps(
    record: DeviceTimeRecord, rungs: Sequence[str] = ("08", "09")
) -> dict[tuple[int, str], TracedStep]:
    """The recorded steps of these rungs by (batch size, rung), in order."""
    of_rungs = {(step.batch_size, rung): step for (rung, _), step in record.steps.items() if rung in rungs}
    return dict(sorted(of_rungs.items()))


def share_of_small_ones(step: TracedStep) -> float:
    """The share of a step's GPU time in kernels that are neither a matrix product nor attention."""
    us = group_us(step)
    return 1 - (us[PRODUCTS] + us[ATTENTION]) / sum(us.values())


def kernel_table(record: DeviceTimeRecord, batch_size: int) -> pd.DataFrame:
    """Kernels and microseconds of a recorded step by what they are for, both rungs beside each other."""
    steps = {rung: step for (size, rung), step in recorded_steps(record).items() if size == batch_size}
    counts = {f"kernels, {rung}": group_counts(step) for rung, step in steps.items()}
    times = {
        f"us, {rung}": {name: round(us) for name, us in group_us(step).items()}
        for rung, step in steps.items()
    }
    table = pd.DataFrame(counts | times)
    table.loc["all"] = table.sum()
    return table.astype(int).rename_axis(columns=f"one step, B = {batch_size}")


def step_table(record: DeviceTimeRecord) -> pd.DataFrame:
    """A row per recorded step: how many kernels it has, how long the GPU was busy, and the limit."""
    rows = {}
    for (size, rung), step in recorded_steps(record).items():
        limit_us = 1e6 * step_limit(size, step.context_len, record.bandwidth).seconds
        rows[f"B = {size}, rung {rung}"] = {
            "kernels": step.num_kernels,
            "GPU busy (us)": round(step.gpu_busy_us),
            "limit (us)": round(limit_us),
            "limit, % of busy": round(100 * limit_us / step.gpu_busy_us, 1),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def gain_table(record: DeviceTimeRecord) -> pd.DataFrame:
    """Microseconds of both rungs' steps by what they are for, the output layer apart, a column per batch
    size."""
    steps = recorded_steps(record)
    columns: dict[str, dict[str, float]] = {}
    for (size, rung), step in steps.items():
        us, head = group_us(step), slowest_single(step).us
        layers = us[PRODUCTS] + us[SPLIT_K_SUMS] - head
        rest = sum(us.values()) - layers - head - us[ATTENTION]
        rows = {
            "layers' products": layers,
            "output layer": head,
            "attention": us[ATTENTION],
            "the rest": rest,
        }
        column = columns.setdefault(f"B = {size}", {})
        column.update({f"{name}, {rung}": round(value) for name, value in rows.items()})
    for size in {size for size, _ in steps}:
        before, after = (steps[size, rung].gpu_busy_us for rung in ("08", "09"))
        columns[f"B = {size}"]["GPU busy, times less"] = round(before / after, 2)
    table = pd.DataFrame(columns)
    parts = [*rows, "GPU busy"]
    order = sorted(table.index, key=lambda name: parts.index(name.split(",")[0]))
    return table.loc[order].map("{:g}".format).rename_axis("microseconds, rung")


def attention_table(record: AttentionTimeRecord) -> pd.DataFrame:
    """One layer's attention by itself, as recorded: microseconds in each form, and the bytes that the split
    form moves."""
    times = {(time.kernel, time.batch_size, time.context_len): time for time in record.samples}
    rows = {}
    for (kernel, batch_size, context_len), split in sorted(times.items(), key=lambda item: item[0][1:]):
        one = times.get((ONE_PROGRAM, batch_size, context_len))
        if kernel == SPLIT and one is not None:
            rows[batch_size, context_len] = {
                "one program (us)": round(one.us, 1),
                "split (us)": round(split.us, 1),
                "splits": split.splits,
                "times faster": round(one.us / split.us, 2),
                "% of a copy's rate": round(100 * split.rate / record.bandwidth),
            }
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index = pd.MultiIndex.from_tuples(table.index, names=["B", "tokens in the cache"])
    return table


# --- the exercises -----------------------------------------------------------------------------------------


def merge(parts: list[tuple[float, float, list[float]]]) -> list[float]:
    """Attention's output from the partial softmaxes of its shares of tokens: (largest, total, acc) each, with
    base 2."""
    all_largest = max(largest for largest, _, _ in parts)
    shares = [2.0 ** (largest - all_largest) for largest, _, _ in parts]
    total = sum(share * part_total for share, (_, part_total, _) in zip(shares, parts, strict=True))
    columns = zip(*(acc for _, _, acc in parts), strict=True)
    return [sum(share * x for share, x in zip(shares, column, strict=True)) / total for column in columns]


def partial_softmax(scores: Tensor, values: Tensor) -> tuple[float, float, list[float]]:
    """The partial softmax (largest, total, acc) of some tokens, with base 2: scores [T] and values [T, D]."""
    scores = scores.double() / np.log(2)  # e to the x is 2 to the x / log(2)
    if len(scores) == 0:
        return float("-inf"), 0.0, [0.0] * values.shape[1]
    weights = (scores - scores.max()).exp2()
    return scores.max().item(), weights.sum().item(), (weights @ values.double()).tolist()


EMPTY = (float("-inf"), 0.0, [0.0, 0.0])


def draw_parts(rng: Random) -> dict[str, object]:
    """Draw arguments of `merge`: shares with no token and with several; their scores are near each other, or
    so far apart that some shares count for nothing."""
    spread = rng.choice([0, 2, 20, 3000])
    middle = rng.choice([0, -2000, 2000])
    head_size = rng.randint(1, 3)
    num_tokens = [rng.choice([0, 1, 2, 5]) for _ in range(rng.randint(1, 6))]
    num_tokens[rng.randrange(len(num_tokens))] = rng.randint(1, 3)  # some program has a token
    return {"parts": [_part(rng, num, head_size, middle, spread) for num in num_tokens]}


def _part(rng: Random, num_tokens: int, head_size: int, middle: int, spread: int) -> tuple:
    # Quarters, which float32 holds, too: an answer by tensors is as right.
    scores = [middle + rng.randint(-4 * spread, 4 * spread) / 4 for _ in range(num_tokens)]
    largest = max(scores, default=float("-inf"))
    weights = [2.0 ** (score - largest) for score in scores]
    acc = [sum(weight * rng.randint(-4, 4) for weight in weights) for _ in range(head_size)]
    return largest, sum(weights, 0.0), [float(x) for x in acc]


MERGE = Exercise(
    name="merge",
    cases=(
        Case(
            {"parts": [(3.0, 2.0, [6.0, 2.0])]},
            [3.0, 1.0],
            "With one part nothing is to be merged: the output is acc / total, number by number, as a list.",
        ),
        Case(
            {"parts": [(3.0, 1.0, [4.0, 0.0]), (3.0, 3.0, [0.0, 4.0])]},
            [1.0, 1.0],
            "Add up the accs and the totals and divide once, at the end. An average of the parts' own "
            "outputs gives a part with a small total as much to say as one with a large total.",
        ),
        Case(
            {"parts": [(1.0, 1.0, [8.0, 0.0]), (2.0, 1.5, [0.0, 8.0])]},
            [2.0, 4.0],
            "The first part's numbers count from its own largest score, 1, and the second's from 2. Bring "
            "both to the larger one: 2 ** (largest - all_largest) times acc, and times total, too.",
        ),
        Case(
            {"parts": [(5000.0, 1.0, [2.0, 0.0]), (4999.0, 2.0, [0.0, 2.0])]},
            [1.0, 0.5],
            "2 ** 5000 does not fit into a number. Take the largest away before you raise, never after.",
        ),
        Case(
            {"parts": [(-5000.0, 1.0, [2.0, 4.0]), (-5000.0, 1.0, [2.0, 0.0])]},
            [2.0, 2.0],
            "Scores may all lie far below 0. The largest of them is where to count from, and not 0, or every "
            "weight becomes 0.",
        ),
        Case(
            {"parts": [EMPTY, (2.0, 2.0, [2.0, 6.0]), EMPTY]},
            [1.0, 3.0],
            "A program without tokens has -inf as its largest, a total of 0 and an acc of zeros; its share "
            "must come out as 0. (-inf less -inf is no number: merge against the largest of all parts.)",
        ),
        Case(
            {"parts": [(1.0, 1.0, [8.0, 0.0]), (2.0, 1.0, [0.0, 8.0]), (3.0, 1.25, [2.0, 4.0])]},
            [2.0, 4.0],
            "There can be any number of parts, and the largest score can be in any of them: whatever was "
            "added up before it came must be rescaled with it.",
        ),
        Case(
            {"parts": [(2000.0, 2.0, [2.0, 4.0]), (0.0, 1.0, [8.0, 8.0])]},
            [1.0, 2.0],
            "Parts can lie so far apart that one of them counts for nothing: 2 ** (0 - 2000) is 0, and that "
            "is right. The other way round, 2 ** (2000 - 0) is more than a number holds.",
        ),
        Case(
            {"parts": [(0.0, 3.0, [1.0, -1.0])]},
            [1 / 3, -1 / 3],
            "Values are any numbers: below 0, too, and the output is not rounded.",
        ),
    ),
    solution=merge,
    draw=draw_parts,
    drawn_hint="Every part counts from its own largest score. Bring all of them, acc and total, to the "
    "largest of all; add up; divide once.",
)


def fold(
    norm_weight: list[float], norm_bias: list[float], weight: list[list[float]], bias: list[float] | None
) -> tuple[list[list[float]], list[float], list[float]]:
    """The folded weight, its column sums and the folded bias of a LayerNorm and the linear layer behind it:
    `fold_layer_norm` of lists."""
    folded = [[w * g for w, g in zip(row, norm_weight, strict=True)] for row in weight]
    folded_bias = [sum(w * b for w, b in zip(row, norm_bias, strict=True)) for row in weight]
    if bias is not None:
        folded_bias = [f + b for f, b in zip(folded_bias, bias, strict=True)]
    return folded, [sum(row) for row in folded], folded_bias


def draw_layer(rng: Random) -> dict[str, object]:
    """Draw arguments of `fold`: a LayerNorm and the linear layer behind it, of any shape, with a bias or
    without."""
    num_outputs, num_inputs = rng.randint(1, 4), rng.randint(1, 4)

    def numbers(size: int) -> list[float]:
        return [rng.randint(-8, 8) / 4 for _ in range(size)]

    return {
        "norm_weight": numbers(num_inputs),
        "norm_bias": numbers(num_inputs),
        "weight": [numbers(num_inputs) for _ in range(num_outputs)],
        "bias": rng.choice([None, numbers(num_outputs)]),
    }


FOLD = Exercise(
    name="fold",
    cases=(
        Case(
            {"norm_weight": [1, 1], "norm_bias": [0, 0], "weight": [[1, 2], [3, 4]], "bias": [5, 6]},
            ([[1, 2], [3, 4]], [3, 7], [5, 6]),
            "A LayerNorm with weights of 1 and biases of 0 leaves weight and bias as they are. Return a "
            "tuple: the folded weight, one sum for each output (over its inputs), and the folded bias.",
        ),
        Case(
            {"norm_weight": [2, 3], "norm_bias": [0, 0], "weight": [[1, 10], [100, 1000]], "bias": [0, 0]},
            ([[2, 30], [200, 3000]], [32, 3200], [0, 0]),
            "The norm's weight belongs to the inputs: column k of the linear layer's weight is multiplied by "
            "norm_weight[k]. The sums are those of the folded weight, because that is what the product sees.",
        ),
        Case(
            {"norm_weight": [1, 1], "norm_bias": [1, 2], "weight": [[1, 10], [100, 1000]], "bias": [5, 6]},
            ([[1, 10], [100, 1000]], [11, 1100], [26, 2106]),
            "The norm's bias goes through the linear layer as any input does: weight @ norm_bias is added to "
            "the linear layer's own bias.",
        ),
        Case(
            {"norm_weight": [2, 3], "norm_bias": [1, 2], "weight": [[1, 10]], "bias": [7]},
            ([[2, 30]], [32], [28]),
            "The norm adds its bias after it has multiplied by its weight, so the bias goes through the "
            "weight as it was, not through the folded one.",
        ),
        Case(
            {
                "norm_weight": [2, 1, 1],
                "norm_bias": [0, 0, 3],
                "weight": [[1, 2, 3], [4, 5, 6]],
                "bias": None,
            },
            ([[2, 2, 3], [8, 5, 6]], [7, 19], [9, 18]),
            "A linear layer may have no bias of its own. The folded one has one all the same: the norm's. "
            "(And a weight need not be square.)",
        ),
        Case(
            {"norm_weight": [-1, 0.5], "norm_bias": [0, 0], "weight": [[2, 3], [4, 8], [0, 1]], "bias": None},
            ([[-2, 1.5], [-4, 4], [0, 0.5]], [-0.5, 0, 0.5], [0, 0, 0]),
            "There is a sum and a bias for each output, also where they are 0, and numbers can be below 0.",
        ),
    ),
    solution=fold,
    draw=draw_layer,
    drawn_hint="Column k of the weight times norm_weight[k]; the sum of each row of that; and the weight as "
    "it was, times norm_bias, added to the bias if there is one.",
)
