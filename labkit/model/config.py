"""What an engine asks of a model's sizes, and those of a GPT-2, read from Hugging Face's config.json."""

from dataclasses import dataclass, fields, replace
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, Self

from labkit import checks
from labkit.checks import is_number, is_whole, shown
from labkit.errors import CheckpointError

LARGEST = 2**31 - 1  # of a size, which kernels hold in 32 bits


class ModelConfig:
    """The sizes of a decoder-only language model, by names that every architecture's config has: each is a
    frozen dataclass whose fields are Hugging Face's."""

    model_type: ClassVar[str]  # the architecture's name in config.json, and in `labkit.model.registry`
    required: ClassVar[tuple[str, ...]]  # fields without which a config.json is refused
    # Options of Hugging Face's models that would change the arithmetic, and the values written here.
    fixed: ClassVar[dict[str, tuple]]
    mlp_matrices: ClassVar[int]  # of a layer; a gated MLP has three

    vocab_size: int  # token ids: 0 to vocab_size - 1
    max_positions: int  # tokens of the longest sequence
    num_layers: int  # layers, each with its own keys and values in the cache
    num_heads: int  # attention heads of a layer: H, which have a query each
    num_kv_heads: int  # heads of a layer that have a key and a value: G, each of them for H / G queries
    head_dim: int  # values of a query, key or value in one head
    hidden_size: int  # width of the hidden states between layers
    inner_dim: int  # width of the MLP's hidden layer
    tie_word_embeddings: bool  # whether the output layer and the token embeddings are one matrix
    eos_token_id: int | None  # the token that ends a text; None if the model has none
    more_eos_token_ids: tuple[int, ...]  # that end a text as well, such as Llama 3's end of a turn

    @property
    def num_matrix_weights(self) -> int:
        """Weights in the matrices of all layers: each is multiplied with every token's hidden state."""
        heads = 2 * (self.num_heads + self.num_kv_heads) * self.head_dim
        return self.num_layers * self.hidden_size * (heads + self.mlp_matrices * self.inner_dim)

    @property
    def kv_values_per_token(self) -> int:
        """Values that one token adds to the KV cache: a key and a value for each layer and its heads of
        them."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @classmethod
    def from_hf(cls, raw: dict[str, Any]) -> Self:
        """Read a parsed config.json. Raises CheckpointError for a missing size or a value that cannot be."""
        check_fixed(raw, cls.fixed)
        if missing := [name for name in cls.required if name not in raw]:
            raise CheckpointError(f"config.json lacks {', '.join(missing)}")
        given = {field.name: raw[field.name] for field in fields(cls) if field.name in raw}  # type: ignore[arg-type]
        first, *more = as_list(raw.get("eos_token_id")) or [None]
        ends = {"eos_token_id": first, "more_eos_token_ids": tuple(more)}
        return cls(**given | cls.read_more(raw) | ends)

    @classmethod
    def read_more(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """The fields that a config.json has by another name, or may leave to what others say."""
        return {}

    def to_hf(self) -> dict[str, Any]:
        """The fields as Hugging Face's config has them."""
        written = dict(vars(self))
        if more := written.pop("more_eos_token_ids"):
            written["eos_token_id"] = [self.eos_token_id, *more]
        return written

    def check(self, epsilon: str, *flags: str) -> None:
        """Raises CheckpointError unless the norms' epsilon, the flags and what ends a text can be."""
        value = getattr(self, epsilon)
        require(epsilon, value, is_number(value) and 0 < value < 1, "a number between 0 and 1")
        for name in flags:
            value = getattr(self, name)
            require(name, value, isinstance(value, bool), "true or false")
        for value in (self.eos_token_id, *self.more_eos_token_ids):
            is_token = value is None or (is_whole(value) and 0 <= value < self.vocab_size)
            what = f"one token id, 0 to {self.vocab_size - 1}, a list of them, or null"
            require("eos_token_id", value, is_token, what)


def called(name: str) -> int:
    """A property of a config, one of `ModelConfig`'s: the field that Hugging Face calls by this name."""
    made: Any = property(attrgetter(name))
    return made


@dataclass(frozen=True)
class GPT2Config(ModelConfig):
    """Sizes of a GPT-2 (Radford et al., 2019)."""

    model_type = "gpt2"
    required = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")
    fixed: ClassVar[dict[str, tuple]] = {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),  # two names of the same function
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    }
    mlp_matrices = 2

    vocab_size: int
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    n_inner: int | None = None  # None: 4 * n_embd; see `inner_dim`
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = True
    eos_token_id: int | None = None
    more_eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raises CheckpointError naming the field and what it must be."""
        require_sizes(self, *self.required, *(() if self.n_inner is None else ("n_inner",)))
        if self.n_embd % self.n_head:
            raise CheckpointError(f"n_embd {self.n_embd} is not a multiple of n_head {self.n_head}")
        self.check("layer_norm_epsilon", "tie_word_embeddings")

    num_layers, max_positions, hidden_size = called("n_layer"), called("n_positions"), called("n_embd")
    num_heads = num_kv_heads = called("n_head")  # all have a key and a value

    @property
    def head_dim(self) -> int:  # type: ignore[override]
        return self.n_embd // self.n_head

    @property
    def inner_dim(self) -> int:  # type: ignore[override]
        return self.n_inner or 4 * self.n_embd

    def with_head_dim(self, head_dim: int) -> "GPT2Config":
        """These layers and heads, with heads of another size."""
        return replace(self, n_embd=self.n_head * head_dim)


require = partial(checks.require, CheckpointError)  # of a field of config.json


def require_sizes(config: object, *names: str, most: int = LARGEST) -> None:
    """Raises CheckpointError unless these fields are whole numbers from 1 to `most`."""
    for name in names:
        value = getattr(config, name)
        is_size = is_whole(value) and 1 <= value <= most
        require(name, value, is_size, f"a whole number from 1 to {most}")


def as_list(ends: Any) -> list:
    """The ids in an eos_token_id of Hugging Face's: one, a list of them, or null."""
    return ends if isinstance(ends, list) else [] if ends is None else [ends]


def check_fixed(raw: dict[str, Any], options: dict[str, tuple]) -> None:
    """Raises CheckpointError if a parsed config.json has an option with another value than those here."""
    for name, allowed in options.items():
        value = raw.get(name, allowed[0])
        if not any(value == one and type(value) is type(one) for one in allowed):
            raise CheckpointError(f"config.json has {name} = {shown(value)}; labkit runs {allowed[0]!r} only")
