"""The device's part of a decode step, launched kernel by kernel (rung 06)."""

from typing import ClassVar

import torch
from torch import Tensor

from labkit.engine.sampling import sample_any, sample_greedy
from labkit.engine.step.attention import LayerAttention
from labkit.engine.step.slots import DeviceSlots
from labkit.model import Network
from labkit.ranges import named_range


class DeviceStep:
    """Forward, K/V write and sampling of one decode step, all on the device.

    No number is read back to decide what runs next, so a CUDA graph can capture it.
    """

    watch_points: ClassVar[tuple[str, ...]] = ("draw_and_advance", "advance")

    def __init__(self, slots: DeviceSlots, network: Network, attention: LayerAttention) -> None:
        self.slots = slots
        self.network = network
        self.attention = attention

    def __call__(self, batch_size: int, max_context_len: int, is_greedy: bool) -> Tensor:
        """The next token ids [B] int64, -1 where logits are not finite; each slot advances by its token.

        max_context_len: at least the longest sequence. is_greedy: whether no request draws a random number.
        """
        slots = self.slots
        slot_mapping = slots.slot_mapping[:batch_size]
        self.attention.begin(slots, slot_mapping, max_context_len)
        positions = slots.context_lens[slot_mapping].clamp(min=0).long()
        with named_range("labkit.model.forward"):
            input_ids = slots.last_token_ids[slot_mapping]
            logits = self.network.decode_one_token(input_ids, positions, self.attention)
        with named_range("labkit.sample"):
            if is_greedy:
                return self.advance(sample_greedy(logits), slot_mapping)
            return self.draw_and_advance(logits, slot_mapping)

    def draw_and_advance(self, logits: Tensor, slot_mapping: Tensor) -> Tensor:
        """Sample token ids [B] from logits [B, V] by the slots' parameters, and advance the slots by them."""
        slots = self.slots
        draws = slots.draws[slot_mapping]
        token_ids = sample_any(
            logits,
            slots.temperatures[slot_mapping],
            slots.top_ks[slot_mapping],
            slots.top_ps[slot_mapping],
            slots.seeds[slot_mapping],
            draws,
        )
        slots.draws[slot_mapping] = draws + 1
        return self.advance(token_ids, slot_mapping)

    def advance(self, token_ids: Tensor, slot_mapping: Tensor) -> Tensor:
        """Advance each slot by its token of `token_ids` [B], and return them; a padding slot stays empty."""
        slots = self.slots
        lens = slots.context_lens[slot_mapping]
        slots.last_token_ids[slot_mapping] = token_ids.clamp(min=0)
        slots.context_lens[slot_mapping] = torch.where(lens < 0, lens, lens + 1)
        return token_ids
