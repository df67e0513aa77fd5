"""Lesson 18: what the reader's cut and layer must hold, in two processes, and the router's order in one.

E embedding, H heads, D head size, F inner values of the MLP, T tokens.
"""

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.checks import shown
from labkit.engine import InferenceEngine, SamplingParams
from labkit.engine.step.fused import FusedDeviceStep
from labkit.kernels import RowStatistics
from labkit.ladder import FINISHED, LADDER
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Report, trained_model
from labkit.learn.lesson_16.gate import check_text
from labkit.learn.lesson_18.pair import Pair, agreed, meet, serve
from labkit.learn.steps import noted
from labkit.model import LanguageModel
from labkit.model.decoder_weights import LayerWeights, LinearWeights
from labkit.model.ranks import Ranks
from labkit.parallel import ParallelEngine, TorchRanks, cut_model
from labkit.parallel.shards import CutLayer, LayerMatrices

TEXTS = ("To be, or not to be", "O Romeo", "The king is")
PARAMS = SamplingParams(8, stop_on_eos=False)
SIZES = ((2, 4), (4, 4), (3, 4))  # heads and their size: one each, two each, two and one
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
    """Random layers, and then an engine that is cut so."""
    for num_heads, head_dim in SIZES:
        whole = random_layer(num_heads, head_dim)
        mine = agreed(ranks, lambda whole=whole, H=num_heads: cut_right(part, whole, H, ranks))
        check_heads(mine, num_heads, head_dim, ranks)
        check_sums(whole, mine, num_heads, head_dim, ranks)

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


def cut_right(part: CutLayer, whole: LayerMatrices, num_heads: int, ranks: Ranks) -> LayerMatrices:
    """A rank's part, whose shapes fit each other. Raises BrokenContract."""
    before = deepcopy(whole)
    mine = part(whole, num_heads, ranks.rank, ranks.size)
    if not all(map(torch.equal, chain(*whole), chain(*before))):
        raise BrokenContract("the whole layer stays as it is: a weight or a bias was changed in place.")
    kinds = [type(each).__name__ for each in (mine if isinstance(mine, LayerMatrices) else [mine])]
    if kinds != [LinearWeights.__name__] * 4:
        raise BrokenContract(f"a part is a LayerMatrices of four LinearWeights: it is {' and '.join(kinds)}.")
    E, (rows, inputs) = len(whole.attention_out.weight), mine.qkv.weight.shape
    D = E // num_heads
    words = f"of {num_heads} heads of {D}, rank {ranks.rank}"
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
    for name in ("qkv", "mlp_in"):
        linear = getattr(mine, name)
        if linear.bias is None or len(linear.bias) != len(linear.weight):
            raise BrokenContract(
                f"a product that is cut by outputs has the biases of its own outputs: {words} has "
                f"{len(linear.weight)} outputs of {name} and "
                f"{'no bias' if linear.bias is None else f'{len(linear.bias)} biases'}."
            )
    return mine


def check_heads(mine: LayerMatrices, num_heads: int, head_dim: int, ranks: TorchRanks) -> None:
    """Raise BrokenContract, on all ranks, unless together they have every head once."""
    own = len(mine.qkv.weight) // 3 // head_dim
    counts = ranks.gather(torch.tensor([[own, len(mine.mlp_in.weight)]]))[0].view(ranks.size, 2).T.tolist()
    inner = 4 * num_heads * head_dim
    for found, whole, noun in zip(counts, (num_heads, inner), ("heads", "inner values"), strict=True):
        if sum(found) != whole:
            raise BrokenContract(
                f"each head and each inner value belongs to one rank: of {whole} {noun}, the ranks have "
                f"{' and '.join(map(str, found))}. Each would be summed as often as there are ranks that "
                "have it."
            )


def check_sums(
    whole: LayerMatrices, mine: LayerMatrices, num_heads: int, head_dim: int, ranks: TorchRanks
) -> None:
    """Raise BrokenContract, on all ranks, unless what they make adds up to what the whole layer makes."""
    x = torch.randn(5, num_heads * head_dim, generator=torch.Generator().manual_seed(1))
    expected, made = both_halves(whole, x, head_dim), both_halves(mine, x, head_dim)
    for half, name in enumerate(("attention_out", "mlp_out")):
        total, right = ranks.sum(made[half]), expected[half]
        if torch.allclose(total, right, rtol=1e-4, atol=1e-5):
            continue
        bias = getattr(whole, name).bias
        for times, words in ((2, "It was added on every rank."), (0, "No rank added it.")):
            if torch.allclose(total, right + (times - 1) * bias, rtol=1e-4, atol=1e-5):
                raise BrokenContract(
                    f"the bias of a sum is added once: with {num_heads} heads, the bias of {name} is in "
                    f"the sum {times} times. {words} One rank has it, and the others have None."
                )
        if half == 0:
            raise BrokenContract(
                "a rank has the queries, keys and values of the same heads, and the columns that take them: "
                f"of {num_heads} heads, the sum of what the ranks make is {total[0, 0]:.4f}, expected "
                f"{right[0, 0]:.4f}. The rows of qkv are all queries, then all keys, then all values: cut "
                "each of the three."
            )
        raise BrokenContract(
            "a rank has the columns of mlp_out that take its own inner values: the sum of what the ranks "
            f"make is {total[0, 0]:.4f}, expected {right[0, 0]:.4f}."
        )


def both_halves(layer: LayerMatrices, x: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """What attention and MLP of a layer, whole or a part, make of x [T, E], without norms and residual."""
    query, key, value = F.linear(x, *layer.qkv).unflatten(1, (3, -1, head_dim)).permute(1, 2, 0, 3)
    heads = F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(0, 1).flatten(1)
    inner = F.gelu(F.linear(x, *layer.mlp_in), approximate="tanh")
    return F.linear(heads, *layer.attention_out), F.linear(inner, *layer.mlp_out)


# --- step 2, in each process --------------------------------------------------------------------------------


class Counted(Ranks):
    """Ranks that count their sums."""

    def __init__(self, ranks: Ranks) -> None:
        self.rank, self.size = ranks.rank, ranks.size
        self._ranks, self.num_sums = ranks, 0

    def sum(self, x: Tensor) -> Tensor:
        self.num_sums += 1
        return self._ranks.sum(x)


def layer_trial(part: MyLayer, ranks: TorchRanks) -> None:
    """One layer of the small model on random rows, and then an engine whose layers are these."""
    model = trained_model()
    mine = cut_model(model, ranks, torch.float32).network.decoder_weights().layers[0]
    whole = model.network.decoder_weights().layers[0]
    x = torch.randn(3, model.config.hidden_size, generator=torch.Generator().manual_seed(2))
    expected = one_layer(layer_of(whole, values_alone), x)
    counted = Counted(ranks)
    made = part(x.clone(), layer_of(mine, values_alone), counted)
    meet(ranks)  # a rank that has made fewer sums would now make another one with whoever waits in theirs
    agreed(ranks, lambda: check_rows(made, x))
    apart = ranks.gather(made.flatten()[None])[0].view(ranks.size, -1)
    agreed(ranks, lambda: check_made(made, expected, x, layer_of(whole, values_alone), counted, apart))
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


def check_rows(made: Tensor, x: Tensor) -> None:
    """Raise BrokenContract unless the reader's layer returned rows like those that it got."""
    if not isinstance(made, Tensor) or made.shape != x.shape:
        raise BrokenContract(
            f"a layer returns rows like those it gets: of {list(x.shape)} it made {shown(made)}."
        )


def check_made(
    made: Tensor, expected: Tensor, x: Tensor, whole: Layer, ranks: Counted, apart: Tensor
) -> None:
    """Raise BrokenContract unless the reader's layer made what the whole one does, with two sums."""
    if ranks.num_sums < 2:
        raise BrokenContract(
            "every product that is cut by inputs makes a part of a sum: a layer has two of them, and "
            f"{ranks.num_sums} sums were made. Without the other ranks' parts, "
            f"{apart.shape[0]} ranks go on with different values, {apart[0, 0]:.4f} and {apart[1, 0]:.4f}."
        )
    if torch.allclose(made, expected, rtol=1e-4, atol=1e-4):
        if ranks.num_sums > 2:
            raise BrokenContract(
                f"a layer waits for two sums: the result is right, and {ranks.num_sums} sums were made."
            )
        return
    n = ranks.size
    for times, where in (
        ((n, n), f"both residuals are in the sum, so {n} ranks have added it {n} times"),
        ((n, 1), f"the first residual is in the sum, so {n} ranks have added it {n} times"),
        ((1, n), f"the second residual is in the sum, so {n} ranks have added it {n} times"),
        ((0, 1), "the first residual is not added"),
        ((1, 0), "the second residual is not added"),
    ):
        if torch.allclose(made, one_layer(whole, x, *times), rtol=1e-4, atol=1e-4):
            raise BrokenContract(
                f"the residual is added once: {where}. Sum what the product makes, and add the residual "
                "afterwards."
            )
    raise BrokenContract(
        f"a sum stands directly after a product that is cut by inputs: {ranks.num_sums} sums were made, "
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


if __name__ == "__main__":
    serve({"shard": shard_trial, "layer": layer_trial})
