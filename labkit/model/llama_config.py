"""The shape of a Llama or a Qwen3, read from Hugging Face's config.json.

Shapes: D head size, P positions.
"""

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from labkit.checks import is_number, is_whole, shown
from labkit.errors import CheckpointError
from labkit.model.config import ModelConfig, called, check_fixed, require, require_sizes
from labkit.model.decoder_weights import Rotary

MOST_POSITIONS = 2**20  # of which each has a row of angles, and no file holds it
WHOLE_HEADS = {"partial_rotary_factor": (1.0, 1)}  # that are rotated


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
class LlamaConfig(ModelConfig):
    """Sizes of a Llama."""

    model_type = "llama"
    required: ClassVar[tuple[str, ...]] = (
        *("vocab_size", "max_position_embeddings", "hidden_size", "intermediate_size"),
        *("num_hidden_layers", "num_attention_heads"),
    )
    fixed: ClassVar[dict[str, tuple]] = {
        "hidden_act": ("silu",),
        "use_sliding_window": (False,),
        **WHOLE_HEADS,
    }
    mlp_matrices = 3
    has_head_norms: ClassVar[bool] = False  # an RMSNorm over each query and key, before it is rotated

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
    more_eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raises CheckpointError naming the field and what it must be."""
        require_sizes(self, *self.required, "num_key_value_heads", "head_dim")
        require_sizes(self, "max_position_embeddings", most=MOST_POSITIONS)
        H, G = self.num_attention_heads, self.num_key_value_heads
        require("num_key_value_heads", G, H % G == 0, f"a divisor of num_attention_heads, {H}")
        require("head_dim", self.head_dim, self.head_dim % 2 == 0, "an even number: its halves are rotated")
        theta = self.rope_theta
        require("rope_theta", theta, is_number(theta) and theta > 1, "a number above 1")
        self.check("rms_norm_eps", "attention_bias", "mlp_bias", "tie_word_embeddings")

    num_layers, max_positions = called("num_hidden_layers"), called("max_position_embeddings")
    num_heads, num_kv_heads = called("num_attention_heads"), called("num_key_value_heads")
    inner_dim = called("intermediate_size")

    @classmethod
    def read_more(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Heads, of which a config.json may leave out how many keys there are and how wide they are; and how
        positions are angles."""
        kinds = raw.get("layer_types") or []
        full = isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)
        require("layer_types", kinds, full, "a list of 'full_attention' alone; labkit runs no other")
        E, H, D, G = (
            raw.get(name)
            for name in ("hidden_size", "num_attention_heads", "head_dim", "num_key_value_heads")
        )
        if D is None and is_whole(E) and is_whole(H) and H > 0:
            if E % H:
                raise CheckpointError(f"hidden_size {E} is not a multiple of num_attention_heads {H}")
            D = E // H
        return {"head_dim": D, "num_key_value_heads": H if G is None else G} | read_angles(raw)

    def to_hf(self) -> dict[str, Any]:
        written = super().to_hf()
        angles = {"rope_theta": written.pop("rope_theta"), "rope_type": "default"}
        if (long_context := written.pop("long_context")) is not None:
            angles |= {"rope_type": "llama3", **vars(long_context)}
        return written | {"rope_parameters": angles}

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
    name = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"  # where both are, the older wins
    given = raw.get(name) or {}
    require(name, given, isinstance(given, dict), "an object or null")
    check_fixed(given, WHOLE_HEADS)
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
    required = (*LlamaConfig.required, "head_dim")
