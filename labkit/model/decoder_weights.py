"""A decoder's weights by what they do, not by an architecture's names: what the fused kernels take.

Shapes: E embedding, H heads, G heads of keys and values, D head size, F width of the MLP, V vocabulary,
P positions.
"""

from typing import Any, NamedTuple

from torch import Tensor, nn


class NormWeights(NamedTuple):
    """A LayerNorm: weight * (x - mean) / sqrt(variance + eps) + bias. Without a bias it is an RMSNorm:
    weight * x / sqrt(mean(x^2) + eps)."""

    weight: Tensor  # [E]
    bias: Tensor | None  # [E]
    eps: float


class LinearWeights(NamedTuple):
    """A linear layer: x @ weight.T + bias."""

    weight: Tensor  # [outputs, inputs]
    bias: Tensor | None  # [outputs]


class LayerWeights(NamedTuple):
    """One layer, with the norm in front of each half:

    x = x + attention_out(attention(qkv(attention_norm(x)))); x = x + mlp_out(gelu(mlp_in(mlp_norm(x)))).
    In a gated MLP, mlp_in has the rows of the gate, then those of the up projection, and silu(gate) * up
    stands for gelu.
    """

    attention_norm: NormWeights
    qkv: LinearWeights  # [(H + 2 * G) * D, E]: the rows of all queries, of all keys, of all values
    attention_out: LinearWeights  # [E, H * D]
    mlp_norm: NormWeights
    mlp_in: LinearWeights  # [F, E], and GELU by its tanh formula follows; gated, [2 * F, E]
    mlp_out: LinearWeights  # [E, F]
    query_norm: NormWeights | None = None  # [D], of each head before it is rotated
    key_norm: NormWeights | None = None


class LayerModules(NamedTuple):
    """The modules of one layer, named as in `LayerWeights`."""

    attention: Any  # a module whose `heads` are how many there are of queries, H, and of keys and values, G
    qkv: nn.Linear
    attention_out: nn.Linear
    mlp_in: nn.Linear
    mlp_out: nn.Linear
    attention_norm: nn.Module
    mlp_norm: nn.Module
    query_norm: nn.Module | None = None
    key_norm: nn.Module | None = None

    @property
    def matrices(self) -> tuple[nn.Linear, ...]:
        """The four products, in their order."""
        return self[1:5]

    def weights(self) -> LayerWeights:
        """The layer's weights by what they do, not copied."""
        made: dict[str, Any] = {}
        for name, module in self._asdict().items():
            if name != "attention" and module is not None:
                made[name] = linear_weights(module) if isinstance(module, nn.Linear) else norm_weights(module)
        return LayerWeights(**made)


class Rotary(NamedTuple):
    """The angles by which queries and keys [..., D] are rotated, of each position: Hugging Face's two halves.

    out[: D / 2] = x[: D / 2] * cos - x[D / 2 :] * sin; out[D / 2 :] = x[D / 2 :] * cos + x[: D / 2] * sin.
    """

    cos: Tensor  # [P, D / 2] float32
    sin: Tensor


class DecoderWeights(NamedTuple):
    """A whole decoder: token and position embeddings are added, the layers follow, a norm, and the head.

    Where positions are angles (`rotary`), they are not added, and there is no table of them.
    """

    token_table: Tensor  # [V, E]
    position_table: Tensor | None  # [P, E]
    layers: tuple[LayerWeights, ...]
    final_norm: NormWeights
    head: Tensor  # [V, E]
    is_gated: bool = False
    rotary: Rotary | None = None


def split_heads(qkv: Tensor, num_heads: int, num_kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query [..., H, D], key and value [..., G, D] in the output [..., (H + 2 * G) * D] of a `qkv`: views."""
    heads = qkv.unflatten(-1, (num_heads + 2 * num_kv_heads, -1))
    query, key, value = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=-2)
    return query, key, value


def norm_weights(norm: nn.LayerNorm | nn.RMSNorm) -> NormWeights:
    """A norm's weights, not copied."""
    bias, eps = (norm.bias.detach(), norm.eps) if isinstance(norm, nn.LayerNorm) else (None, norm.eps or 0.0)
    return NormWeights(norm.weight.detach(), bias, eps)


def linear_weights(linear: nn.Linear) -> LinearWeights:
    """A linear layer's weights, not copied."""
    bias: Tensor | None = linear.bias
    return LinearWeights(linear.weight.detach(), None if bias is None else bias.detach())
