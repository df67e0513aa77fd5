"""Lesson 18: what the reader's cut and layer must hold, in two processes, and the router's order in one.

E embedding, H heads, D head size, F inner values of the MLP, T tokens.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.engine import InferenceEngine, SamplingParams
from labkit.engine.step.fused import FusedDeviceStep
from labkit.kernels import RowStatistics
from labkit.ladder import FINISHED, LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Report, trained_model
from labkit.learn.lesson_16.gate import check_text
from labkit.learn.lesson_18.pair import Pair, serve, swapped
from labkit.learn.steps import noted
from labkit.model import LanguageModel
from labkit.model.decoder_weights import LayerWeights, LinearWeights
from labkit.model.ranks import Ranks
from labkit.parallel import ParallelEngine, TorchRanks, cut_model
from labkit.parallel.shards import CutLayer, LayerMatrices

TEXTS = ("To be, or not to be", "O Romeo", "The king is")
PARAMS = SamplingParams(8, stop_on_eos=False)
SIZES = ((2, 4), (4, 4), (3, 4))  # heads and their size: one each, two each, two and one
SAME = {
    "attention_out": "a rank has the queries, keys and values of the same heads, and the columns that take "
    "them",
    "mlp_out": "a rank has the columns of mlp_out that take its own inner values",
}
IN_THREE = "The rows of qkv are all queries, then all keys, then all values: cut each of the three."
PAIR = Pair("labkit.learn.lesson_18.gate")


class Layer(NamedTuple):
    """What a rank does in a layer, as functions of rows [B, ...]: norms are in `qkv` and `mlp_in`, GELU is in
    `mlp_in`."""

    qkv: Callable[[Tensor], Tensor]  # [B, E] -> [B, 3 * H * D]
    attend: Callable[[Tensor], Tensor]  # -> [B, H * D]
    attention_out: Callable[[Tensor], Tensor]  # -> [B, E]
    mlp_in: Callable[[Tensor], Tensor]  # [B, E] -> [B, F]
    mlp_out: Callable[[Tensor], Tensor]  # -> [B, E]


MyLayer = Callable[[Tensor, Layer, Ranks], Tensor]


def layer_of(weights: LayerWeights, attend: Callable[[Tensor], Tensor]) -> Layer:
    """A layer's functions from its weights, whole or a rank's part."""

    def norm(x: Tensor, which: Any) -> Tensor:
        return F.layer_norm(x, x.shape[1:], *which)

    return Layer(
        qkv=lambda x: F.linear(norm(x, weights.attention_norm), *weights.qkv),
        attend=attend,
        attention_out=lambda x: F.linear(x, *weights.attention_out),
        mlp_in=lambda x: F.gelu(F.linear(norm(x, weights.mlp_norm), *weights.mlp_in), approximate="tanh"),
        mlp_out=lambda x: F.linear(x, *weights.mlp_out),
    )


def check_shard(part: CutLayer) -> Report:
    """Whether two processes, each with its part of a layer as a function cuts it, are one whole layer."""
    return noted(PAIR.prove("shard", part), "18", "my_shard", part)


def check_layer(part: MyLayer) -> Report:
    """Whether a layer has its sums over two processes where they belong."""
    return noted(PAIR.prove("layer", part), "18", "my_layer", part)


# --- step 1, in each process --------------------------------------------------------------------------------


def shard_trial(part: CutLayer, ranks: TorchRanks) -> None:
    """Random layers and all ranks' parts of them, and then an engine that is cut so."""
    for num_heads, head_dim in SIZES:
        whole = random_layer(num_heads, head_dim)
        parts = [part(whole, num_heads, rank, ranks.size) for rank in range(ranks.size)]
        for rank, mine in enumerate(parts):
            check_shapes(mine, num_heads, head_dim, rank)
        check_heads(parts, num_heads, head_dim)
        check_sums(whole, parts, num_heads, head_dim)

    class Cut(ParallelEngine):
        def cut(self, model: LanguageModel, dtype: torch.dtype) -> LanguageModel:
            return cut_model(model, self.ranks, dtype, part)

    check_engine(Cut(trained_model(), ranks, FINISHED.options, dtype=torch.float32))


def random_layer(num_heads: int, head_dim: int) -> LayerMatrices:
    """A whole layer's matrices, of which every rank draws the same."""
    numbers, E = torch.Generator().manual_seed(num_heads), num_heads * head_dim

    def linear(outputs: int, inputs: int) -> LinearWeights:
        weight = torch.randn(outputs, inputs, generator=numbers) * inputs**-0.5
        return LinearWeights(weight, torch.randn(outputs, generator=numbers))

    return LayerMatrices(linear(3 * E, E), linear(E, E), linear(4 * E, E), linear(E, 4 * E))


def check_shapes(mine: LayerMatrices, num_heads: int, head_dim: int, rank: int) -> None:
    """Raise BrokenContract unless the shapes of a rank's part fit each other."""
    E, D, (rows, inputs) = num_heads * head_dim, head_dim, mine.qkv.weight.shape
    words = f"of {num_heads} heads of {D}, rank {rank}"
    if inputs != E or mine.mlp_in.weight.shape[1] != E:
        raise BrokenContract(
            "what makes heads and inner values is cut by outputs, which are the rows of its weight: "
            f"{words} has qkv {[rows, inputs]} and mlp_in {[*mine.mlp_in.weight.shape]}, whose inputs are "
            f"cut. Every rank has all {E} values of x, and makes some of the outputs."
        )
    if rows % (3 * D):
        raise BrokenContract(
            f"a rank has whole heads: {words} has {rows} rows of queries, keys and values, which are "
            f"{rows / 3 / D:.3g} heads. Cut inside a head, no rank could compute its scores."
        )
    width, inner = rows // 3, len(mine.mlp_in.weight)
    wanted = {"attention_out": [E, width], "mlp_out": [E, inner]}
    for name, expected in wanted.items():
        if (found := [*getattr(mine, name).weight.shape]) != expected:
            raise BrokenContract(
                "what takes heads and inner values is cut by inputs, which are the columns of its weight: "
                f"{words} has {name} {found}, expected {expected}. It multiplies "
                "what this rank has made, and makes a part of every output."
            )


def check_heads(parts: Sequence[LayerMatrices], num_heads: int, head_dim: int) -> None:
    """Raise BrokenContract unless all ranks' parts together have every head once."""
    heads = [len(mine.qkv.weight) // 3 // head_dim for mine in parts]
    inner = [len(mine.mlp_in.weight) for mine in parts]
    for found, whole, noun in (
        (heads, num_heads, "heads"),
        (inner, 4 * num_heads * head_dim, "inner values"),
    ):
        if sum(found) != whole:
            raise BrokenContract(
                f"each head and each inner value belongs to one rank: of {whole} {noun}, the ranks have "
                f"{' and '.join(map(str, found))}. Each would be summed as often as there are ranks that "
                "have it."
            )


def check_sums(whole: LayerMatrices, parts: Sequence[LayerMatrices], num_heads: int, head_dim: int) -> None:
    """Raise BrokenContract unless what the parts make adds up to what the whole layer makes."""
    x = torch.randn(5, num_heads * head_dim, generator=torch.Generator().manual_seed(1))
    expected, made = both_halves(whole, x, head_dim), [both_halves(mine, x, head_dim) for mine in parts]
    totals = [sum(half) for half in zip(*made, strict=True)]
    for name, total, right in zip(("attention_out", "mlp_out"), totals, expected, strict=True):
        if torch.allclose(total, right, rtol=1e-4, atol=1e-5):
            continue
        bias = getattr(whole, name).bias
        for times in (0, 2):
            if torch.allclose(total, right + (times - 1) * bias, rtol=1e-4, atol=1e-5):
                raise BrokenContract(
                    f"the bias of a sum is added once: with {num_heads} heads, the bias of {name} is in "
                    f"the sum {times} times. One rank has it, and the others have None."
                )
        raise BrokenContract(
            f"{SAME[name]}: of {num_heads} heads, the sum of what the ranks make is {total[0, 0]:.4f}, "
            f"expected {right[0, 0]:.4f}. {IN_THREE if name == 'attention_out' else ''}"
        )


def both_halves(layer: LayerMatrices, x: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """What attention and MLP of a layer, whole or a part, make of x [T, E], without norms and residual."""
    query, key, value = F.linear(x, *layer.qkv).unflatten(1, (3, -1, head_dim)).permute(1, 2, 0, 3)
    heads = F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(0, 1).flatten(1)
    inner = F.gelu(F.linear(x, *layer.mlp_in), approximate="tanh")
    return F.linear(heads, *layer.attention_out), F.linear(inner, *layer.mlp_out)


# --- step 2, in each process --------------------------------------------------------------------------------


def layer_trial(part: MyLayer, ranks: TorchRanks) -> None:
    """One layer of the small model on random rows, and then an engine whose layers are these."""
    model = trained_model()
    mine = cut_model(model, ranks, torch.float32).network.decoder_weights().layers[0]
    whole = model.network.decoder_weights().layers[0]
    x = torch.randn(3, model.config.hidden_size, generator=torch.Generator().manual_seed(2))
    with patch.object(ranks, "sum", wraps=ranks.sum) as summed:
        made = part(x.clone(), layer_of(mine, values_alone), ranks)
    first = f"{made[0, 0]:.4f}"
    _, other = swapped(ranks, [True, first])
    check_made(made, x, layer_of(whole, values_alone), summed.call_count, (first, other))
    step = step_with(part, ranks)
    engine = ParallelEngine(
        model, ranks, LADDER["09"].options, dtype=torch.float32, parts={"layer_kernels": step}
    )
    check_engine(engine)


def values_alone(qkv: Tensor) -> Tensor:
    """Attention of a row that sees only itself: its values."""
    return qkv.chunk(3, dim=1)[2]


def one_layer(layer: Layer, x: Tensor, first: float = 1.0, second: float = 1.0) -> Tensor:
    """A whole layer whose residuals are added so many times."""
    x = first * x + layer.attention_out(layer.attend(layer.qkv(x)))
    return second * x + layer.mlp_out(layer.mlp_in(x))


def check_made(made: Tensor, x: Tensor, whole: Layer, num_sums: int, firsts: Sequence[str]) -> None:
    """Raise BrokenContract unless the reader's layer made what the whole one does, with two sums. firsts: the
    first value that each rank has made, this one's first."""
    n = len(firsts)
    if num_sums < 2:
        raise BrokenContract(
            "every product that is cut by inputs makes a part of a sum: a layer has two of them, and "
            f"{num_sums} sums were made. Without the other ranks' parts, {n} ranks go on with different "
            f"values, {' and '.join(firsts)}."
        )
    expected = one_layer(whole, x)
    if torch.allclose(made, expected, rtol=1e-4, atol=1e-4):
        return
    for times, which in (
        ((n, n), "both residuals are"),
        ((n, 1), "the first residual is"),
        ((1, n), "the second residual is"),
    ):
        if torch.allclose(made, one_layer(whole, x, *times), rtol=1e-4, atol=1e-4):
            raise BrokenContract(
                f"the residual is added once: {which} in the sum, so {n} ranks have added it {n} times. Sum "
                "what the product makes, and add the residual afterwards."
            )
    raise BrokenContract(
        f"a sum stands directly after a product that is cut by inputs: {num_sums} sums were made, "
        f"and the first value is {made[0, 0]:.4f}, expected {expected[0, 0]:.4f}. Heads and inner values of "
        "two ranks are not parts of a sum: they are different values."
    )


def step_with(part: MyLayer, ranks: Ranks) -> type[FusedDeviceStep]:
    """A decode step whose layers are the reader's."""

    class ReadersStep(FusedDeviceStep):
        def layer(
            self, layer_idx: int, x: Tensor, statistics: RowStatistics | None
        ) -> tuple[Tensor, RowStatistics | None]:
            """The layer's output; nothing reads the statistics of its rows."""
            weights = self.network.decoder_weights().layers[layer_idx]
            return part(x, layer_of(weights, lambda qkv: self.attend(layer_idx, qkv)), ranks), statistics

    return ReadersStep


# --- both ---------------------------------------------------------------------------------------------------


def check_engine(engine: ParallelEngine) -> None:
    """Raise BrokenContract, on the first rank, unless an engine on two ranks makes the tokens of one."""
    made = engine.lead_or_follow(lambda: engine.generate(TEXTS, PARAMS))
    if made is None:
        return
    for text, completion, expected in zip(TEXTS, made, text_of_one(), strict=True):
        check_text("two processes make the tokens of one:", text, completion.token_ids, expected)


@cache
def text_of_one() -> list[tuple[int, ...]]:
    """The tokens that one process makes."""
    engine = InferenceEngine(trained_model(), FINISHED.options, device="cpu", dtype=torch.float32)
    return [each.token_ids for each in engine.generate(TEXTS, PARAMS)]


# --- broken on purpose, without an error --------------------------------------------------------------------


def shard(layer: LayerMatrices, num_heads: int, rank: int, size: int) -> LayerMatrices:
    """Whole heads, inner values, and the biases of sums on the first rank."""

    def heads(tensor: Tensor) -> Tensor:
        return tensor.unflatten(0, (3, num_heads, -1)).tensor_split(size, dim=1)[rank].flatten(0, 2)

    by_head = layer.attention_out.weight.unflatten(1, (num_heads, -1))
    inner = layer.mlp_out.weight.tensor_split(size, dim=1)[rank]
    return LayerMatrices(
        qkv=LinearWeights(*map(heads, layer.qkv)),
        attention_out=LinearWeights(
            by_head.tensor_split(size, dim=1)[rank].flatten(1), None if rank else layer.attention_out.bias
        ),
        mlp_in=LinearWeights(*(each.tensor_split(size)[rank] for each in layer.mlp_in)),
        mlp_out=LinearWeights(inner, None if rank else layer.mlp_out.bias),
    )


def bias_on_every_rank(layer: LayerMatrices, num_heads: int, rank: int, size: int) -> LayerMatrices:
    """The cut is right, but every rank has the biases of the sums."""
    mine = shard(layer, num_heads, rank, size)
    return mine._replace(
        attention_out=mine.attention_out._replace(bias=layer.attention_out.bias),
        mlp_out=mine.mlp_out._replace(bias=layer.mlp_out.bias),
    )


def cut_in_the_middle(layer: LayerMatrices, num_heads: int, rank: int, size: int) -> LayerMatrices:
    """The rows of qkv are cut in the middle: the first rank has all queries and half of the keys."""
    rows = LinearWeights(*(each.tensor_split(size)[rank] for each in layer.qkv))
    return shard(layer, num_heads, rank, size)._replace(qkv=rows)


def sums_the_residual(x: Tensor, layer: Layer, ranks: Ranks) -> Tensor:
    """The residual is added before the sum."""
    x = ranks.sum(x + layer.attention_out(layer.attend(layer.qkv(x))))
    return ranks.sum(x + layer.mlp_out(layer.mlp_in(x)))


def one_rank_forgets(x: Tensor, layer: Layer, ranks: Ranks) -> Tensor:
    """One rank makes one sum fewer than the others."""
    x = x + ranks.sum(layer.attention_out(layer.attend(layer.qkv(x))))
    out = layer.mlp_out(layer.mlp_in(x))
    return x + (out if ranks.rank else ranks.sum(out))


if __name__ == "__main__":
    serve({"shard": shard_trial, "layer": layer_trial})
