"""The shape of a GPT-2, read from Hugging Face's config.json."""

from dataclasses import dataclass

from labkit.errors import CheckpointError

# Options of Hugging Face's GPT-2 that would change the arithmetic, and the one value written here.
FIXED_OPTIONS = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),  # two names of the same function
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}


@dataclass(frozen=True)
class GPT2Config:
    """Sizes of a GPT-2 (Radford et al., 2019). Field names are Hugging Face's."""

    vocab_size: int
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    n_inner: int | None = None  # width of the MLP; None: 4 * n_embd
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = True
    eos_token_id: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner"):
            value = getattr(self, name)
            if value is None and name == "n_inner":
                continue
            if not isinstance(value, int) or value < 1:
                raise CheckpointError(f"{name} must be a positive whole number, not {value!r}")
        if self.n_embd % self.n_head:
            raise CheckpointError(f"n_embd {self.n_embd} is not a multiple of n_head {self.n_head}")
        if not isinstance(self.eos_token_id, int | None):
            raise CheckpointError(f"eos_token_id must be one token id or none, not {self.eos_token_id!r}")

    @classmethod
    def from_hf(cls, raw: dict) -> "GPT2Config":
        """Read a parsed config.json. Raises CheckpointError for another architecture or a missing size."""
        for name, allowed in FIXED_OPTIONS.items():
            value = raw.get(name, None if name == "model_type" else allowed[0])
            if value not in allowed:
                raise CheckpointError(f"config.json has {name} = {value!r}; labkit runs {allowed[0]!r} only")
        missing = [n for n in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head") if n not in raw]
        if missing:
            raise CheckpointError(f"config.json lacks {', '.join(missing)}")
        return cls(**{name: raw[name] for name in cls.__dataclass_fields__ if name in raw})

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that one token adds to the KV cache: a key and a value for each layer and head."""
        return 2 * self.n_layer * self.n_embd
