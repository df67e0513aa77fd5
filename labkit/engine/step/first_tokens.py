"""The first token of a prompt, drawn on the device from its logits by the sampler of the decode step."""

from typing import NamedTuple

import torch
from torch import Tensor

from labkit.engine.sampling import Draws, sample_greedy
from labkit.engine.step.chunk_layout import ChunkLayout
from labkit.engine.step.samplers import Sampler
from labkit.kernels import SamplingState


class PromptSlots(NamedTuple):
    """What the prompts of a chunk draw with, by place: tensors [P], in the form that slots have."""

    sampling_state: SamplingState
    last_token_ids: Tensor


class FirstTokens(NamedTuple):
    """What the sampler asks of a decode step: here no slot is advanced, for none of the requests has one.

    likeliest: the likeliest token ids [P], where they are known.
    """

    slots: PromptSlots
    likeliest: Tensor | None = None

    def take_likeliest(self, logits: Tensor, slot_mapping: Tensor) -> Tensor:
        """The likeliest token ids [P] of logits [P, V], -1 where they are not finite."""
        return sample_greedy(logits) if self.likeliest is None else self.likeliest

    def advance(self, token_ids: Tensor, slot_mapping: Tensor) -> Tensor:
        """The token ids."""
        return token_ids


class FirstTokenSampler:
    """Samples the first tokens of a chunk's prompts, without a wait: those of `sample_requests`."""

    watch_points = ("sample",)

    def __init__(self, sampler: Sampler, layout: ChunkLayout, device: torch.device) -> None:
        """sampler: of the decode step. layout: of the chunks."""
        self._sampler = sampler
        self._layout = layout
        self._places = torch.arange(layout.max_prompts, device=device)
        self._last_token_ids = torch.zeros_like(self._places)  # samplers write there; nobody reads it

    def warm_up(self, logits: Tensor, numbers: Tensor) -> None:
        """Draw once in each way, with arguments as `sample` takes them: then no kernel is compiled in the
        middle of serving."""
        for draws in self._sampler.families:
            self.sample(logits, numbers, draws)

    def sample(
        self, logits: Tensor, numbers: Tensor, draws: Draws, likeliest: Tensor | None = None
    ) -> Tensor:
        """A token id for each row of logits [P, V], -1 where they are not finite: int64 [P].

        numbers: of the chunk, on the device, as its layout has them. draws: what the finished prompts ask for
        together. likeliest: the likeliest token ids [P], where they are known; they may be written over.
        """
        if draws is Draws.NONE:
            return sample_greedy(logits) if likeliest is None else likeliest
        state = self._layout.split(numbers).sampling_state
        step = FirstTokens(PromptSlots(state, self._last_token_ids), likeliest)
        known = draws if draws in self._sampler.families else Draws.FILTERED
        return self._sampler(step, logits, self._places[: len(logits)], known)
