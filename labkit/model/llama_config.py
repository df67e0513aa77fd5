"""The shape of a Llama or a Qwen3, read from Hugging Face's config.json.

Shapes: D head size, P positions.
"""

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from labkit.checks import is_number, shown
from labkit.errors import CheckpointError
from labkit.model.config import (
    called,
    check_fixed,
    read_ends,
    require,
    require_ends,
    require_flags,
    require_size,
    require_sizes,
    with_ends,
)
from labkit.model.decoder_weights import Rotary

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
    more_eos_token_ids: tuple[int, ...] = ()  # that end a text as well, such as Llama 3's end of a turn

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
        require_ends(self)

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
        return cls(**given | read_ends(raw) | read_angles(raw))

    num_layers, max_positions = called("num_hidden_layers"), called("max_position_embeddings")
    num_heads, num_kv_heads = called("num_attention_heads"), called("num_key_value_heads")

    @property
    def num_matrix_weights(self) -> int:
        """Weights in the matrices of all layers: attention's, and the MLP's three."""
        heads = 2 * (self.num_heads + self.num_kv_heads) * self.head_dim
        return self.num_layers * self.hidden_size * (heads + 3 * self.intermediate_size)

    @property
    def kv_values_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    def to_hf(self) -> dict[str, Any]:
        written = with_ends(vars(self))
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
