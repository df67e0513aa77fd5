"""The Llama family in plain PyTorch: Llama 2 and 3 (Touvron et al., 2023; Meta, 2024) and Qwen3 (Qwen, 2025).

Beside GPT-2: positions are angles by which queries and keys are rotated (RoPE), several queries share a key
and a value (grouped heads), norms are RMSNorms, and the MLP has a gate. Parameter names are Hugging Face's,
but queries, keys and values are one linear layer, and so are the gate and the up projection.
Shapes: B batch, T tokens, E embedding, H heads, G heads of keys and values, D head size, F width of the MLP,
P positions.
"""

import math
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.checks import is_number, shown
from labkit.errors import CheckpointError
from labkit.model.checkpoint_format import CheckpointFormat
from labkit.model.config import (
    check_fixed,
    require,
    require_flags,
    require_size,
    require_sizes,
    require_token,
)
from labkit.model.decoder_weights import (
    DecoderWeights,
    LayerWeights,
    Rotary,
    linear_weights,
    norm_weights,
    split_heads,
)
from labkit.model.network import Attend, Network, in_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MOST_POSITIONS = 2**20  # of which each has a row of angles, and no file holds it
REQUIRED = (
    *("vocab_size", "max_position_embeddings", "hidden_size", "intermediate_size"),
    *("num_hidden_layers", "num_attention_heads"),
)
# Options of Hugging Face's models that would change the arithmetic, and the values written here.
FIXED_OPTIONS = {
    "hidden_act": ("silu",),
    "partial_rotary_factor": (1.0, 1),
    "use_sliding_window": (False,),
}


@dataclass(frozen=True)
class LongContext:
    """How Llama 3.1 and later slow the slowest angles down, for texts longer than the first it learned from.

    Hugging Face's rope_type "llama3", by its names.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        """Raises CheckpointError naming the field and what it must be."""
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            value = getattr(self, name)
            require(name, value, is_number(value) and value >= 1, "a number, at least 1")
        low, high = self.low_freq_factor, self.high_freq_factor
        require("high_freq_factor", high, low < high, f"more than low_freq_factor, {shown(low)}")
        require_sizes(self, "original_max_position_embeddings", most=MOST_POSITIONS)

    def slowed(self, frequencies: Tensor) -> Tensor:
        """Of frequencies [D / 2], those of long waves over `factor`, those of short ones as they are, and
        between both in steps."""
        turns = self.original_max_position_embeddings / (2 * math.pi / frequencies)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = kept.clamp(0, 1)
        return (1 - kept) * frequencies / self.factor + kept * frequencies


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of a Llama. Field names are Hugging Face's; the engine reads the neutral names of
    `ModelConfig`."""

    model_type: ClassVar[str] = "llama"
    has_head_norms: ClassVar[bool] = False  # an RMSNorm over each query and key, before it is rotated
    required: ClassVar[tuple[str, ...]] = REQUIRED

    vocab_size: int
    max_position_embeddings: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    long_context: LongContext | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    eos_token_id: int | None = None

    def __post_init__(self) -> None:
        """Raises CheckpointError naming the field and what it must be."""
        require_sizes(self, *REQUIRED, "num_key_value_heads", "head_dim")
        require_sizes(self, "max_position_embeddings", most=MOST_POSITIONS)
        H, G = self.num_attention_heads, self.num_key_value_heads
        require("num_key_value_heads", G, H % G == 0, f"a divisor of num_attention_heads, {H}")
        require("head_dim", self.head_dim, self.head_dim % 2 == 0, "an even number: its halves are rotated")
        eps, theta = self.rms_norm_eps, self.rope_theta
        require("rms_norm_eps", eps, is_number(eps) and 0 < eps < 1, "a number between 0 and 1")
        require("rope_theta", theta, is_number(theta) and theta > 1, "a number above 1")
        require_flags(self, "attention_bias", "mlp_bias", "tie_word_embeddings")
        require_token("eos_token_id", self.eos_token_id, self.vocab_size)

    @classmethod
    def from_hf(cls, raw: dict[str, Any]) -> "LlamaConfig":
        """Read a parsed config.json. Raises CheckpointError for a missing size or a value that cannot be."""
        check_fixed(raw, FIXED_OPTIONS)
        kinds = raw.get("layer_types") or []
        full = isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)
        require("layer_types", kinds, full, "a list of 'full_attention' alone; labkit runs no other")
        if missing := [name for name in cls.required if name not in raw]:
            raise CheckpointError(f"config.json lacks {', '.join(missing)}")
        given = {field.name: raw[field.name] for field in fields(cls) if field.name in raw}
        E, H = (require_size(name, raw[name]) for name in ("hidden_size", "num_attention_heads"))
        if given.get("head_dim") is None:
            if E % H:
                raise CheckpointError(f"hidden_size {E} is not a multiple of num_attention_heads {H}")
            given["head_dim"] = E // H
        if given.get("num_key_value_heads") is None:
            given["num_key_value_heads"] = H
        return cls(**given | read_angles(raw))

    @property
    def num_layers(self) -> int:
        """Layers: attention and MLP each."""
        return self.num_hidden_layers

    @property
    def num_heads(self) -> int:
        """Heads of a layer that have a query."""
        return self.num_attention_heads

    @property
    def num_kv_heads(self) -> int:
        """Heads of a layer that have a key and a value."""
        return self.num_key_value_heads

    @property
    def max_positions(self) -> int:
        """Tokens of the longest sequence."""
        return self.max_position_embeddings

    @property
    def num_matrix_weights(self) -> int:
        """Weights in the matrices of all layers: attention's, and the MLP's three."""
        heads = 2 * (self.num_heads + self.num_kv_heads) * self.head_dim
        return self.num_layers * self.hidden_size * (heads + 3 * self.intermediate_size)

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that one token adds to the KV cache: a key and a value for each layer and its heads of
        them."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    def rotary(self, device: torch.device) -> Rotary:
        """The angles of every position, made on the CPU: the same on every device."""
        D = self.head_dim
        frequencies = 1 / self.rope_theta ** (torch.arange(0, D, 2).float() / D)
        if self.long_context is not None:
            frequencies = self.long_context.slowed(frequencies)
        angles = torch.arange(self.max_positions).float()[:, None] * frequencies  # [P, D / 2]
        return Rotary(angles.cos().to(device), angles.sin().to(device))


def read_angles(raw: dict[str, Any]) -> dict[str, Any]:
    """The fields of `LlamaConfig` that say how positions are angles, in config.json as transformers 5 writes
    it or as older ones did. Raises CheckpointError for a kind of angles that is not written here."""
    name = "rope_parameters" if raw.get("rope_parameters") is not None else "rope_scaling"
    given = raw.get(name) or {}
    require(name, given, isinstance(given, dict), "an object or null")
    check_fixed(given, {"partial_rotary_factor": FIXED_OPTIONS["partial_rotary_factor"]})
    kind = given.get("rope_type", given.get("type", "default"))
    require("rope_type", kind, kind in ("default", "llama3"), "'default' or 'llama3'; labkit runs no other")
    angles = {"rope_theta": given.get("rope_theta", raw.get("rope_theta", 10000.0)), "long_context": None}
    if kind == "llama3":
        names = [field.name for field in fields(LongContext)]
        if missing := [each for each in names if each not in given]:
            raise CheckpointError(f"config.json's {name} lacks {', '.join(missing)}")
        angles["long_context"] = LongContext(**{each: given[each] for each in names})
    return angles


@dataclass(frozen=True)
class Qwen3Config(LlamaConfig):
    """Sizes of a Qwen3: those of a Llama with heads of any size, and a norm over each query and key."""

    model_type = "qwen3"
    has_head_norms = True
    required = (*REQUIRED, "head_dim")


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

    def layer_weights(self) -> LayerWeights:
        """This layer's weights by what they do, not copied."""
        attention = self.self_attn
        return LayerWeights(
            norm_weights(self.input_layernorm),
            linear_weights(attention.qkv_proj),
            linear_weights(attention.o_proj),
            norm_weights(self.post_attention_layernorm),
            linear_weights(self.mlp.gate_up_proj),
            linear_weights(self.mlp.down_proj),
            None if attention.q_norm is None else norm_weights(attention.q_norm),
            None if attention.k_norm is None else norm_weights(attention.k_norm),
        )


class Llama(Network):
    """The decoder of Llama 2 and 3, and by its config of Qwen3."""

    config: LlamaConfig
    config_type: ClassVar[type[LlamaConfig]] = LlamaConfig
    checkpoint_format = CheckpointFormat(
        prefix="model.",
        layer=re.compile(r"layers\.(\d+)\."),
        num_layers_field="num_hidden_layers",
        token_table="embed_tokens.weight",
        head="lm_head.weight",
        transposed=re.compile(r"(?!)"),  # none
        not_weights=re.compile(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq$"),
    )
    watch_points = ("decode_one_token",)

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
        """Hidden states [B, T, E] of tokens [B, T] at positions [B, T]."""
        angles = Rotary(*(table[positions][:, :, None] for table in self.rotary()))
        x = self.embed_tokens(input_ids)
        for layer_idx, layer in enumerate(self.layers):
            x = layer(x, layer_idx, attend, angles)
        return self.norm(x)

    @classmethod
    def read_config(cls, raw: dict[str, Any]) -> LlamaConfig:
        """The sizes in a parsed config.json. Raises CheckpointError for one that is missing or cannot be."""
        return cls.config_type.from_hf(raw)

    @classmethod
    def stored_shapes(cls, config: LlamaConfig) -> dict[str, tuple[int, ...]]:
        """Shapes of stored tensors that together hold every size of `config` but the number of layers."""
        E = config.hidden_size
        rows = {name: n for parts in cls.joined_rows(config).values() for name, n in parts.items()}
        return {
            "embed_tokens.weight": (config.vocab_size, E),
            "layers.0.self_attn.q_proj.weight": (rows["q_proj"], E),
            "layers.0.self_attn.k_proj.weight": (rows["k_proj"], E),
            "layers.0.mlp.gate_proj.weight": (rows["gate_proj"], E),
        }

    @classmethod
    def joined_rows(cls, config: LlamaConfig) -> dict[str, dict[str, int]]:
        """The linear layers that a checkpoint has in parts, with the rows of each."""
        H, G, D, width = config.num_heads, config.num_kv_heads, config.head_dim, config.intermediate_size
        return {
            "qkv_proj": {"q_proj": H * D, "k_proj": G * D, "v_proj": G * D},
            "gate_up_proj": {"gate_proj": width, "up_proj": width},
        }

    def lookup_tables(self) -> tuple[Tensor, ...]:
        """The token table, unless it is the head as well."""
        return () if self.config.tie_word_embeddings else (self.embed_tokens.weight,)

    def decoder_weights(self) -> DecoderWeights:
        """The weights as the fused kernels take them, not copied."""
        return DecoderWeights(
            self.embed_tokens.weight.detach(),
            None,
            tuple(layer.layer_weights() for layer in self.layers if isinstance(layer, Block)),  # all of them
            norm_weights(self.norm),
            self.lm_head.weight.detach(),
            is_gated=True,
            rotary=self.rotary(),
        )

    def as_transformers(self) -> "PreTrainedModel":
        """Hugging Face's own model with a copy of these weights, on the CPU, in float32."""
        sizes = {name: value for name, value in vars(self.config).items() if name != "long_context"}
        angles = {"rope_theta": sizes.pop("rope_theta"), "rope_type": "default"}
        if self.config.long_context is not None:
            angles |= {"rope_type": "llama3", **vars(self.config.long_context)}
        return in_transformers(self, **sizes, rope_parameters=angles)


class Qwen3(Llama):
    """The decoder of Qwen3: a Llama's, with its own config."""

    config_type = Qwen3Config
