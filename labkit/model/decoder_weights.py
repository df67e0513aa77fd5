"""A decoder's weights by what they do, not by an architecture's names: what the fused kernels take.

Shapes: E embedding, F width of the MLP, V vocabulary, P positions.
"""

from typing import NamedTuple

from torch import Tensor


class NormWeights(NamedTuple):
    """A LayerNorm: weight * (x - mean) / sqrt(variance + eps) + bias."""

    weight: Tensor  # [E]
    bias: Tensor  # [E]
    eps: float


class LinearWeights(NamedTuple):
    """A linear layer: x @ weight.T + bias."""

    weight: Tensor  # [outputs, inputs]
    bias: Tensor | None  # [outputs]


class LayerWeights(NamedTuple):
    """One layer, with the norm in front of each half:

    x = x + attention_out(attention(qkv(attention_norm(x)))); x = x + mlp_out(gelu(mlp_in(mlp_norm(x)))).
    """

    attention_norm: NormWeights
    qkv: LinearWeights  # [3 * E, E]: the rows of all queries, of all keys, of all values
    attention_out: LinearWeights  # [E, E]
    mlp_norm: NormWeights
    mlp_in: LinearWeights  # [F, E]; GELU by its tanh formula follows
    mlp_out: LinearWeights  # [E, F]


class DecoderWeights(NamedTuple):
    """A whole decoder: token and position embeddings are added, the layers follow, a norm, and the head."""

    token_table: Tensor  # [V, E]
    position_table: Tensor  # [P, E]
    layers: tuple[LayerWeights, ...]
    final_norm: NormWeights
    head: Tensor  # [V, E]
