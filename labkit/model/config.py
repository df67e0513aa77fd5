"""The shape of a GPT-2, read from Hugging Face's config.json."""

from dataclasses import dataclass, fields, replace
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar

from labkit import checks
from labkit.checks import is_number, is_whole, shown
from labkit.errors import CheckpointError

LARGEST = 2**31 - 1  # of a size, which kernels hold in 32 bits
# Options of Hugging Face's GPT-2 that would change the arithmetic, and the one value written here.
FIXED_OPTIONS = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),  # two names of the same function
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}
# An option that changes no more than the rounding: either value is fine.
UPCAST = "reorder_and_upcast_attn"


def called(name: str) -> int:
    """A property of a config, one of `ModelConfig`'s: the field that Hugging Face calls by this name."""
    made: Any = property(attrgetter(name))
    return made


@dataclass(frozen=True)
class GPT2Config:
    """Sizes of a GPT-2 (Radford et al., 2019). Field names are Hugging Face's; the engine reads the neutral
    names of `ModelConfig`."""

    model_type: ClassVar[str] = "gpt2"

    vocab_size: int
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    n_inner: int | None = None  # None: 4 * n_embd; see `inner_dim`
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = True
    eos_token_id: int | None = None
    more_eos_token_ids: tuple[int, ...] = ()  # that end a text as well, such as the end of a turn

    def __post_init__(self) -> None:
        """Raises CheckpointError naming the field and what it must be."""
        sizes = ["vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner"]
        require_sizes(self, *(sizes[:-1] if self.n_inner is None else sizes))
        if self.n_embd % self.n_head:
            raise CheckpointError(f"n_embd {self.n_embd} is not a multiple of n_head {self.n_head}")
        epsilon = self.layer_norm_epsilon
        is_small = is_number(epsilon) and 0 < epsilon < 1
        require("layer_norm_epsilon", epsilon, is_small, "a number between 0 and 1")
        require_flags(self, "tie_word_embeddings")
        require_ends(self)

    @classmethod
    def from_hf(cls, raw: dict[str, Any]) -> "GPT2Config":
        """Read a parsed config.json. Raises CheckpointError for a missing size or a value that cannot be."""
        check_fixed(raw, FIXED_OPTIONS)
        require(UPCAST, raw.get(UPCAST, False), isinstance(raw.get(UPCAST, False), bool), "true or false")
        missing = [n for n in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head") if n not in raw]
        if missing:
            raise CheckpointError(f"config.json lacks {', '.join(missing)}")
        given = {field.name: raw[field.name] for field in fields(cls) if field.name in raw}
        return cls(**given | read_ends(raw))

    def to_hf(self) -> dict[str, Any]:
        return with_ends(vars(self))

    num_layers, max_positions, hidden_size = called("n_layer"), called("n_positions"), called("n_embd")
    num_heads = num_kv_heads = called("n_head")  # all have a key and a value

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head

    @property
    def inner_dim(self) -> int:
        """Width of the MLP's hidden layer."""
        return self.n_inner or 4 * self.n_embd

    @property
    def num_matrix_weights(self) -> int:
        """Weights in the matrices of all layers: queries, keys, values, the projection, and the MLP's two."""
        return self.n_layer * (4 * self.n_embd**2 + 2 * self.n_embd * self.inner_dim)

    @property
    def kv_values_per_token(self) -> int:
        return 2 * self.n_layer * self.n_embd

    def with_head_dim(self, head_dim: int) -> "GPT2Config":
        """These layers and heads, with heads of another size."""
        return replace(self, n_embd=self.n_head * head_dim)


require = partial(checks.require, CheckpointError)  # of a field of config.json


def require_size(name: str, value: Any, most: int = LARGEST) -> int:
    """The value. Raises CheckpointError unless it is a whole number from 1 to `most`."""
    is_size = is_whole(value) and 1 <= value <= most
    require(name, value, is_size, f"a whole number from 1 to {most}")
    return value


def require_sizes(config: object, *names: str, most: int = LARGEST) -> None:
    """Raises CheckpointError unless these fields are whole numbers from 1 to `most`."""
    for name in names:
        require_size(name, getattr(config, name), most)


def require_flags(config: object, *names: str) -> None:
    """Raises CheckpointError unless these fields are true or false."""
    for name in names:
        value = getattr(config, name)
        require(name, value, isinstance(value, bool), "true or false")


def require_ends(config: Any) -> None:
    """Raises CheckpointError unless what ends a text is token ids, or None."""
    for value in (config.eos_token_id, *config.more_eos_token_ids):
        is_token = value is None or (is_whole(value) and 0 <= value < config.vocab_size)
        what = f"one token id, 0 to {config.vocab_size - 1}, a list of them, or null"
        require("eos_token_id", value, is_token, what)


def as_list(ends: Any) -> list:
    """The ids in an eos_token_id of Hugging Face's: one, a list of them, or null."""
    return ends if isinstance(ends, list) else [] if ends is None else [ends]


def read_ends(raw: dict[str, Any]) -> dict[str, Any]:
    """The two fields that say what ends a text, from the one in a parsed config.json."""
    first, *more = as_list(raw.get("eos_token_id")) or [None]
    return {"eos_token_id": first, "more_eos_token_ids": tuple(more)}


def with_ends(values: dict[str, Any]) -> dict[str, Any]:
    """A config's fields with these two as one again."""
    written = dict(values)
    if more := written.pop("more_eos_token_ids"):
        written["eos_token_id"] = [written["eos_token_id"], *more]
    return written


def check_fixed(raw: dict[str, Any], options: dict[str, tuple]) -> None:
    """Raises CheckpointError if a parsed config.json has an option with another value than those here."""
    for name, allowed in options.items():
        value = raw.get(name, allowed[0])
        if not any(value == one and type(value) is type(one) for one in allowed):
            raise CheckpointError(f"config.json has {name} = {shown(value)}; labkit runs {allowed[0]!r} only")
