"""What an engine needs of a language model, whatever its architecture.

A `Network` knows nothing of paging: how a query sees the past is handed in, as an `Attend`.
Shapes: B batch, T tokens, E embedding, H heads, G heads of keys and values, D head size, L layers,
V vocabulary.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from labkit.errors import OptionError
from labkit.model.config import ModelConfig
from labkit.model.decoder_weights import DecoderWeights, LayerModules
from labkit.model.prefill_attention import CausalAttention, PastAttention, PastKV
from labkit.model.ranks import ALONE, Ranks
from labkit.model.shared_context import SharedContext

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Not cuDNN's: it makes a plan for every new shape, in each thread anew, and that takes longer than a prefill.
PREFILL_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
PREFILL_ATTENTION = SharedContext(lambda: sdpa_kernel(PREFILL_BACKENDS))  # PyTorch's choice is the process's

# (layer_idx, query [B, H, T, D], key, value [B, G, T, D]) -> [B, H, T, D]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class CheckpointFormat:
    """How an architecture's weights are named and stored in Hugging Face's safetensors files: by the names of
    the network's own parameters, but for the prefix."""

    prefix: str  # that a checkpoint may put before each name
    token_table: str  # the head too, where they are tied and the head is not stored
    head: str
    transposed: re.Pattern[str]  # matrices stored [in, out], where nn.Linear has [out, in]
    not_weights: re.Pattern[str]  # buffers that old checkpoints stored, read by nothing


class Prefilled(NamedTuple):
    """What a prefill leaves: the logits after each prompt's last token, and every new key and value."""

    last_logits: Tensor  # [B, V]
    keys: Tensor  # [L, B, G, T, D]; row b is meaningful up to its length
    values: Tensor  # [L, B, G, T, D]


class Network(nn.Module):
    """A decoder-only language model: the base of every architecture in `labkit.model.registry`.

    An architecture gives `forward` and `lm_head`, names its config (`config_type`), and says how its weights
    are stored (`checkpoint_format`). With `decoder_weights` it also runs on the rungs whose layers are fused
    kernels.
    """

    config_type: ClassVar[type[ModelConfig]]
    checkpoint_format: ClassVar[CheckpointFormat]
    watch_points: ClassVar[tuple[str, ...]] = ("prefill", "decode_one_token")
    config: ModelConfig
    lm_head: nn.Linear  # [V, E], no bias
    ranks: Ranks = ALONE  # the processes that have its weights, each a part

    def __init__(self, config: Any) -> None:
        """config: the architecture's own `ModelConfig`."""
        super().__init__()
        self.config = config

    def joined_rows(self) -> dict[str, dict[str, int]]:
        """The linear layers that a checkpoint has in parts, by the last part of their names: the name and the
        number of rows of each part, in order."""
        return {}

    def tie_weights(self) -> None:
        """Make one tensor of those that are tied; needed after weights were moved or replaced."""

    def lookup_tables(self) -> tuple[Tensor, ...]:
        """The parameters of which a decode step reads single rows, and never all: embeddings, but for the
        token table where that is the head as well."""
        tables = (m.weight for m in self.modules() if isinstance(m, nn.Embedding))
        return tuple(table for table in tables if table is not self.lm_head.weight)

    def decoder_weights(self) -> DecoderWeights:
        """The weights as the fused kernels take them, not copied.

        Raises OptionError if the architecture does other arithmetic than theirs.
        """
        raise OptionError(
            f"layer_kernels = 'fused' (rungs from 09 on) does not fit {type(self).__name__}: its layers are "
            "not those of the fused kernels. Choose layer_kernels = 'separate'"
        )

    def layer_modules(self) -> list[LayerModules]:
        """Each layer's modules, and whose heads they make: what is cut for several GPUs.

        Raises OptionError if the architecture has other layers.
        """
        raise OptionError(f"{type(self).__name__} cannot be cut for several processes: run it in one")

    def as_transformers(self) -> "PreTrainedModel":
        """Hugging Face's own model with a copy of these weights, on the CPU, in float32. No token ends its
        texts: a run makes all its tokens, whatever comes.

        Raises OptionError if this architecture has no way there.
        """
        if not hasattr(self, "checkpoint_format"):
            raise OptionError(f"{type(self).__name__} cannot be made a model of transformers")
        from transformers import AutoConfig, AutoModelForCausalLM

        sizes = self.config.to_hf() | {"bos_token_id": None, "eos_token_id": None}
        config = AutoConfig.for_model(self.config.model_type, **sizes)
        theirs = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
        theirs.load_state_dict(self.stored_tensors())
        theirs.tie_weights()
        return theirs

    def stored_names(self, name: str, num_rows: int) -> dict[str, int]:
        """The checkpoint's names, without its prefix, of a parameter's parts, with the rows of each. Of one
        that is stored whole, its own name, with all rows."""
        module = name.split(".")[-2]
        rows = self.joined_rows().get(module, {module: num_rows})
        return {name.replace(f".{module}.", f".{part}."): count for part, count in rows.items()}

    def stored_tensors(self) -> dict[str, Tensor]:
        """The weights as a checkpoint has them: its names and shapes."""
        names, stored = self.checkpoint_format, dict[str, Tensor]()
        for name, weight in self.state_dict().items():
            turned = weight.T if names.transposed.fullmatch(name) else weight
            parts = self.stored_names(name, len(turned))
            pieces = zip(parts, turned.split(list(parts.values())), strict=True)
            stored |= {(n if n == names.head else names.prefix + n): piece for n, piece in pieces}
        return stored

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def forward(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states [B, T, E], ready for `lm_head`, of tokens [B, T] at positions [B, T].

        attend: called once per layer, in their order.
        """
        raise NotImplementedError

    @torch.inference_mode()
    def prefill(self, input_ids: Tensor, lengths: Tensor, past: PastKV | None = None) -> Prefilled:
        """Run ragged prompts in one batch.

        input_ids [B, T] is padded at the end; lengths [B] counts each row's real tokens. Pads stand
        after every real token, so causal attention never lets a real token see one, whatever is computed
        for it. With `past`, row b continues after past.lengths[b] tokens whose keys and values are given.
        """
        B, T = input_ids.shape
        positions = torch.arange(T, device=input_ids.device).expand(B, T)
        pads = positions >= lengths[:, None]
        if past is not None:
            positions = positions + past.lengths[:, None]
        positions = positions.clamp(max=self.config.max_positions - 1)  # pads alone can lie past the end
        attention = CausalAttention(pads) if past is None else PastAttention(past, T, pads)
        with PREFILL_ATTENTION:
            hidden = self(input_ids, positions, attention)
        last = hidden[torch.arange(B, device=hidden.device), lengths - 1]  # [B, E]
        return Prefilled(self.lm_head(last), torch.stack(attention.keys), torch.stack(attention.values))

    @torch.inference_mode()
    def decode_one_token(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Logits [B, V] after one more token per sequence: input_ids [B] at positions [B]."""
        hidden = self(input_ids[:, None], positions[:, None], attend)  # [B, 1, E]
        return self.lm_head(hidden[:, 0])
