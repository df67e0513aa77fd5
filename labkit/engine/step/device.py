"""The device's part of a decode step, launched kernel by kernel (rung 06)."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from labkit.engine.sampling import Draws, sample_greedy
from labkit.engine.step.attention import LayerAttention
from labkit.engine.step.samplers import Sampler, SortedSampler
from labkit.engine.step.slots import DeviceSlots
from labkit.model import Network
from labkit.ranges import named_range


class DeviceStep:
    """Forward, K/V write and sampling of one decode step, all on the device.

    No number is read back to decide what runs next, so a CUDA graph can capture it.
    """

    watch_points: ClassVar[tuple[str, ...]] = ("draw_and_advance", "advance")
    sampler: Sampler = SortedSampler()  # unless the options choose another one
    tell_logits: Callable[[Tensor], object] | None = None  # called before tokens are sampled: see `scored`

    def __init__(self, slots: DeviceSlots, network: Network, attention: LayerAttention) -> None:
        self.slots = slots
        self.network = network
        self.attention = attention

    def __call__(self, batch_size: int, max_context_len: int, draws: Draws) -> Tensor:
        """The next token ids [B] int64, -1 where logits are not finite; each slot advances by its token.

        max_context_len: at least the longest sequence. draws: one of `families`.
        """
        slots = self.slots
        slot_mapping = slots.slot_mapping[:batch_size]
        self.attention.begin(slots, slot_mapping, max_context_len)
        positions = slots.context_lens[slot_mapping].clamp(min=0).long()
        with named_range("labkit.model.forward"):
            input_ids = slots.last_token_ids[slot_mapping]
            logits = self.network.decode_one_token(input_ids, positions, self.attention)
        with named_range("labkit.sample"):
            if draws == Draws.NONE:
                return self.take_likeliest(logits, slot_mapping)
            return self.draw_and_advance(logits, slot_mapping, draws)

    @property
    def families(self) -> tuple[Draws, ...]:
        """The kinds of batches that the step runs in different ways."""
        return self.sampler.families

    def take_likeliest(self, logits: Tensor, slot_mapping: Tensor) -> Tensor:
        """The likeliest token ids [B] of logits [B, V], -1 where they are not finite, with the slots advanced
        by them."""
        if self.tell_logits is not None:
            self.tell_logits(logits)
        return self.advance(sample_greedy(logits), slot_mapping)

    def draw_and_advance(self, logits: Tensor, slot_mapping: Tensor, draws: Draws) -> Tensor:
        """Sample token ids [B] from logits [B, V] by the slots' parameters, and advance the slots by them."""
        if self.tell_logits is not None:
            self.tell_logits(logits)
        return self.sampler(self, logits, slot_mapping, draws)

    def advance(self, token_ids: Tensor, slot_mapping: Tensor) -> Tensor:
        """Advance each slot by its token of `token_ids` [B], and return them; a padding slot stays empty."""
        slots = self.slots
        lens = slots.context_lens[slot_mapping]
        slots.last_token_ids[slot_mapping] = token_ids.clamp(min=0)
        slots.context_lens[slot_mapping] = torch.where(lens < 0, lens, lens + 1)
        return token_ids
