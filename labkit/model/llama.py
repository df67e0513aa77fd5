"""The Llama family in plain PyTorch: Llama 2 and 3 (Touvron et al., 2023; Meta, 2024) and Qwen3 (Qwen, 2025).

Beside GPT-2: positions are angles by which queries and keys are rotated (RoPE), several queries share a key
and a value (grouped heads), norms are RMSNorms, and the MLP has a gate. Parameter names are Hugging Face's,
but queries, keys and values are one linear layer, and so are the gate and the up projection.
Shapes: B batch, T tokens, E embedding, H heads, G heads of keys and values, D head size, F width of the MLP.
"""

import re

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.model.decoder_weights import DecoderWeights, LayerModules, Rotary, norm_weights, split_heads
from labkit.model.llama_config import LlamaConfig, Qwen3Config
from labkit.model.network import Attend, CheckpointFormat, Network


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps), in float32 at least, rounded to x's dtype, times the weight."""

    eps: float

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states or heads [..., E], normalized along their last dimension."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


def rotated(x: Tensor, angles: Rotary) -> Tensor:
    """Queries or keys [B, T, heads, D], each rotated by its position's angles [B, T, 1, D / 2], in float32 at
    least."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class SelfAttention(nn.Module):
    """Causal self-attention over rotated queries and keys; each head of keys is for H / G queries."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        E, D, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.heads = config.num_heads, config.num_kv_heads
        self.qkv_proj = nn.Linear(E, (config.num_heads + 2 * config.num_kv_heads) * D, bias)
        self.o_proj = nn.Linear(config.num_heads * D, E, bias)
        self.q_norm = RMSNorm(D, config.rms_norm_eps) if config.has_head_norms else None
        self.k_norm = RMSNorm(D, config.rms_norm_eps) if config.has_head_norms else None

    def forward(self, x: Tensor, layer_idx: int, attend: Attend, angles: Rotary) -> Tensor:
        """Hidden states [B, T, E], after a norm, to what attention adds to them."""
        query, key, value = split_heads(self.qkv_proj(x), *self.heads)  # [B, T, H or G, D]
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        heads = rotated(query, angles), rotated(key, angles), value
        out = attend(layer_idx, *(each.transpose(1, 2) for each in heads))  # [B, H, T, D]
        return self.o_proj(out.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two projections of which the one, through SiLU, is the gate of the other, and one back."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        E, width, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_up_proj = nn.Linear(E, 2 * width, bias)
        self.down_proj = nn.Linear(width, E, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states [..., E], after a norm, to what the MLP adds to them."""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class Block(nn.Module):
    """One layer: attention, then the MLP, each behind a norm and added to its input."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = SelfAttention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, layer_idx: int, attend: Attend, angles: Rotary) -> Tensor:
        """Hidden states [B, T, E] to those after this layer."""
        x = x + self.self_attn(self.input_layernorm(x), layer_idx, attend, angles)
        return x + self.mlp(self.post_attention_layernorm(x))

    def modules_by_use(self) -> LayerModules:
        """This layer's modules, and whose heads they make."""
        attention, mlp = self.self_attn, self.mlp
        return LayerModules(
            *(attention, attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj),
            *(self.input_layernorm, self.post_attention_layernorm, attention.q_norm, attention.k_norm),
        )


class Llama(Network):
    """The decoder of Llama 2 and 3, and by its config of Qwen3."""

    config: LlamaConfig
    config_type = LlamaConfig
    checkpoint_format = CheckpointFormat(
        prefix="model.",
        token_table="embed_tokens.weight",
        head="lm_head.weight",
        transposed=re.compile(r"(?!)"),  # none
        not_weights=re.compile(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq$"),
    )

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self._rotary: Rotary | None = None  # no buffer: it stays in float32 whatever the weights are in
        self.tie_weights()

    def tie_weights(self) -> None:
        """Make the head and the token table one tensor, if the config says so."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def rotary(self) -> Rotary:
        """The angles of every position, where the weights are."""
        if self._rotary is None or self._rotary.cos.device != self.device:
            self._rotary = self.config.rotary(self.device)
        return self._rotary

    def forward(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        angles = Rotary(*(table[positions][:, :, None] for table in self.rotary()))
        x = self.embed_tokens(input_ids)
        for layer_idx, layer in enumerate(self.layers):
            x = layer(x, layer_idx, attend, angles)
        return self.norm(x)

    def joined_rows(self) -> dict[str, dict[str, int]]:
        config = self.config
        D, width = config.head_dim, config.intermediate_size
        queries, keys = config.num_heads * D, config.num_kv_heads * D
        return {
            "qkv_proj": {"q_proj": queries, "k_proj": keys, "v_proj": keys},
            "gate_up_proj": {"gate_proj": width, "up_proj": width},
        }

    def decoder_weights(self) -> DecoderWeights:
        return DecoderWeights(
            self.embed_tokens.weight.detach(),
            None,
            tuple(layer.weights() for layer in self.layer_modules()),
            norm_weights(self.norm),
            self.lm_head.weight.detach(),
            is_gated=True,
            rotary=self.rotary(),
        )

    def layer_modules(self) -> list[LayerModules]:
        return [layer.modules_by_use() for layer in self.layers if isinstance(layer, Block)]  # all of them


class Qwen3(Llama):
    """The decoder of Qwen3: a Llama's, with its own config."""

    config_type = Qwen3Config
