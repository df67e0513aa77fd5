"""A language model as it is loaded: its network, its tokenizer, and how it is talked to."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from labkit.model.chat import ChatTemplate, Voice
from labkit.model.config import ModelConfig
from labkit.model.network import Network
from labkit.model.tokenizer import Tokenizer


@dataclass(frozen=True)
class LanguageModel:
    """A network with its tokenizer and the name it was loaded by.

    chat_template: how it wants conversations written, if it was trained on any; see `chat_prompt`.
    """

    name: str
    network: Network
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None = None

    @property
    def config(self) -> ModelConfig:
        """The network's sizes."""
        return self.network.config

    @property
    def dtype(self) -> torch.dtype:
        return self.network.dtype

    @property
    def device(self) -> torch.device:
        """Where the network's weights are."""
        return self.network.device

    @property
    def has_random_weights(self) -> bool:
        """Whether its weights were drawn, not trained: its text means nothing."""
        return self.name.startswith("random:")

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "LanguageModel":
        """This model on `device` in `dtype`; a copy, unless it is there already."""
        if self.device == torch.empty(0, device=device).device and self.dtype == dtype:
            return self
        network = copy.deepcopy(self.network).to(device, dtype)
        network.tie_weights()
        return replace(self, network=network)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokens that end a text; none if the model has none."""
        ends = (self.tokenizer.eos_token_id, *self.config.more_eos_token_ids)
        return frozenset(end for end in ends if end is not None)

    def chat_prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The token ids of a conversation as the model was trained to read it, up to where its answer begins:
        a prompt for `generate`.

        messages: in order, each with its "role" ("system", "user" or "assistant") and its "content".
        Raises RequestError if the model has no chat template, or if the messages do not fit it.
        """
        return self.voice.chat_prompt(messages)

    @property
    def voice(self) -> Voice:
        """All of it but the weights."""
        return Voice(self.name, self.tokenizer, self.chat_template)

    def __repr__(self) -> str:
        count = sum(p.numel() for p in self.network.parameters())
        size = f"{count / 1e6:.1f} M {'random ' * self.has_random_weights}parameters"
        return f"LanguageModel({self.name}: {size}, {self.dtype}, {self.device})"
