"""Lesson 18: cuts and layers that are wrong without an error, and the right ones that they are made from."""

from torch import Tensor

from labkit.learn.lesson_18.gate import Layer
from labkit.model.decoder_weights import LinearWeights
from labkit.model.ranks import Ranks
from labkit.parallel.shards import LayerMatrices


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
