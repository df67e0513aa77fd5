"""A rank's part of a model: columns of the products that make heads and inner values, rows of those behind.

Shapes: E embedding, H heads, G heads of keys and values, D head size, F width of the MLP, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.errors import OptionError
from labkit.model import LanguageModel, ModelConfig
from labkit.model.checkpoint import network_without_weights
from labkit.model.decoder_weights import LayerModules, LinearWeights, linear_weights
from labkit.parallel.ranks import TorchRanks

HEAD_MULTIPLE = 64  # rows of a rank's part of the head: a product is several times faster than with one more

Cut = Callable[[Tensor, int], Tensor]  # (whole, dimension) -> this rank's part of it


class LayerMatrices(NamedTuple):
    """A layer's products, whole or a rank's part. A bias of a sum over ranks is None on all ranks but one."""

    qkv: LinearWeights  # [(H + 2 * G) * D, E]
    attention_out: LinearWeights  # [E, H * D]
    mlp_in: LinearWeights  # [F, E]; gated, [2 * F, E]
    mlp_out: LinearWeights  # [E, F]


# (whole, H, rank, ranks) -> this rank's part
CutLayer = Callable[[LayerMatrices, int, int, int], LayerMatrices]


class CutConfig(ModelConfig):
    """The sizes of a rank's part of a network: its own numbers of heads and inner values, and the whole's for
    all else."""

    tie_word_embeddings = False  # the head is cut, the token table is not

    def __init__(self, whole: ModelConfig, num_heads: int, num_kv_heads: int, inner_dim: int) -> None:
        self.whole = whole
        self.num_heads, self.num_kv_heads, self.inner_dim = num_heads, num_kv_heads, inner_dim

    def __getattr__(self, name: str) -> Any:
        if name == "whole" or name.startswith("__"):  # of an object that is being copied
            raise AttributeError(name)
        return getattr(self.whole, name)


@torch.no_grad()
def cut_model(
    model: LanguageModel, ranks: TorchRanks, dtype: torch.dtype, cut_layer: CutLayer | None = None
) -> LanguageModel:
    """This rank's part of a model, on its device in `dtype`: the same modules with fewer heads and inner
    values. The model itself is left as it is.

    Queries, keys, values and the first half of the MLP are cut by columns, so that a rank has whole heads;
    what is behind them by rows, so that every rank has a part of a sum; the head by vocabulary. Tables, norms
    and the biases of sums, which one rank adds, are whole. Raises OptionError for heads of which
    not every rank would have some.

    cut_layer: what cuts each layer; None for the package's own way.
    """
    network = model.network
    config, is_gated = network.config, network.decoder_weights().is_gated
    groups = head_groups(config.num_heads, config.num_kv_heads, ranks.size)
    heads = config.num_heads, config.num_kv_heads

    def cut(whole: Tensor, dim: int) -> Tensor:
        part = whole.chunk(ranks.size, dim)[ranks.rank].to(ranks.device, dtype)
        return part.clone(memory_format=torch.contiguous_format)

    part = network_without_weights(config)

    def shard_of(whole: LayerMatrices) -> LayerMatrices:
        if cut_layer is not None:
            return cut_layer(whole, config.num_heads, ranks.rank, ranks.size)
        by_group = whole.attention_out.weight.unflatten(1, (groups, -1))
        return LayerMatrices(
            qkv=cut_outputs(whole.qkv, lambda t: cut_qkv(t, *heads, groups, cut)),
            attention_out=on_one_rank(cut(by_group, 1).flatten(1), whole.attention_out.bias, ranks),
            mlp_in=cut_outputs(
                whole.mlp_in, lambda t: cut(t.unflatten(0, (1 + is_gated, -1)), 1).flatten(0, 1)
            ),
            mlp_out=on_one_rank(cut(whole.mlp_out.weight, 1), whole.mlp_out.bias, ranks),
        )

    for whole, mine in zip(network.layer_modules(), part.layer_modules(), strict=True):
        fill(mine, shard_of(LayerMatrices(*map(linear_weights, whole.matrices))), ranks, dtype)
        num_heads = mine.attention_out.weight.shape[1] // config.head_dim
        num_kv_heads = (len(mine.qkv.weight) // config.head_dim - num_heads) // 2
        mine.attention.heads = num_heads, num_kv_heads
    head = network.lm_head.weight
    multiple = HEAD_MULTIPLE * ranks.size
    part.lm_head.weight = parameter(cut(F.pad(head, (0, 0, 0, -len(head) % multiple)), 0))
    part.lm_head.register_forward_hook(lambda _module, _x, out: ranks.gather(out)[..., : config.vocab_size])
    missing = {name for name, weight in part.named_parameters() if weight.is_meta}
    whole_ones = {n: w.to(ranks.device, dtype) for n, w in network.named_parameters() if n in missing}
    part.load_state_dict(whole_ones, strict=False, assign=True)
    part.config = CutConfig(config, num_heads, num_kv_heads, mine.mlp_out.weight.shape[1])
    part.ranks = ranks
    return replace(model, network=part.eval().requires_grad_(False))


def head_groups(num_heads: int, num_kv_heads: int, size: int) -> int:
    """Into how many groups the heads are cut, each with a head of keys and values: a rank has one or more.

    Where there are fewer of those than ranks, several ranks have a copy of the same one. Raises OptionError
    where that leaves a rank without a head.
    """
    refused = f"{num_heads} heads with {num_kv_heads} of keys and values cannot be cut for {size} processes: "
    if num_kv_heads >= size:
        each = -(-num_kv_heads // size)  # the last rank has what the others leave
        if each * (size - 1) >= num_kv_heads:
            raise OptionError(
                f"{refused}with {each} for each, one would have none; start as many as divide {num_kv_heads}"
            )
        return num_kv_heads
    if size % num_kv_heads or num_heads % size:
        raise OptionError(
            f"{refused}start as many as divide {num_heads} and are a multiple of {num_kv_heads}, or "
            "fewer than that"
        )
    return size


def cut_qkv(whole: Tensor, num_heads: int, num_kv_heads: int, groups: int, cut: Cut) -> Tensor:
    """A rank's rows of weight [(H + 2 * G) * D, E] or bias [(H + 2 * G) * D]: of whole groups of heads."""
    D = len(whole) // (num_heads + 2 * num_kv_heads)
    query, *keys_and_values = whole.split((num_heads * D, num_kv_heads * D, num_kv_heads * D))
    parts = [cut(query.unflatten(0, (groups, -1)), 0)]
    for each in keys_and_values:
        by_head = each.unflatten(0, (num_kv_heads, D))
        parts.append(cut(by_head.repeat_interleave(groups // num_kv_heads, dim=0), 0))
    return torch.cat([each.flatten(0, 1) for each in parts])


def cut_outputs(whole: LinearWeights, cut_rows: Callable[[Tensor], Tensor]) -> LinearWeights:
    """A rank's rows of a weight and its bias."""
    return LinearWeights(cut_rows(whole.weight), None if whole.bias is None else cut_rows(whole.bias))


def on_one_rank(weight: Tensor, bias: Tensor | None, ranks: TorchRanks) -> LinearWeights:
    """A rank's part of a product whose result is a sum over ranks: the first rank has the bias."""
    return LinearWeights(weight, bias if ranks.rank == 0 else None)


def fill(mine: LayerModules, part: LayerMatrices, ranks: TorchRanks, dtype: torch.dtype) -> None:
    """Give a layer's modules a rank's part, and sums over ranks to those that make a part of one."""
    for module, (weight, bias) in zip(mine.matrices, part, strict=True):
        module.weight = parameter(weight.to(ranks.device, dtype))
        whole_bias = None if bias is None else parameter(bias.to(ranks.device, dtype))
        module.register_parameter("bias", whole_bias)
    for module in (mine.attention_out, mine.mlp_out):
        module.register_forward_hook(lambda _module, _x, out: ranks.sum(out))


def parameter(weight: Tensor) -> nn.Parameter:
    """A parameter that is never trained."""
    return nn.Parameter(weight, requires_grad=False)
