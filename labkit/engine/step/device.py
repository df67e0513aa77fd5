"""The device's work of a step, launched kernel by kernel (rung 06)."""

import torch
from torch import Tensor

from labkit.engine.sampling import sample_any, sample_greedy
from labkit.engine.step.attention import LayerAttention
from labkit.engine.step.slots import DeviceSlots
from labkit.model import GPT2
from labkit.ranges import named_range


class DeviceStep:
    """What the device does in one step. It takes no decision on the host, so that it can be captured."""

    def __init__(self, slots: DeviceSlots, gpt2: GPT2, attention: LayerAttention) -> None:
        self.slots = slots
        self.gpt2 = gpt2
        self.attention = attention

    def __call__(self, batch_size: int, max_context_len: int, is_greedy: bool) -> Tensor:
        """Token ids [B], -1 for a row whose logits are not finite. Every slot named moves on by a token.

        max_context_len: at least the longest. is_greedy: whether no request draws a random number.
        """
        slots = self.slots
        slot_mapping = slots.slot_mapping[:batch_size]
        self.attention.begin(slots, slot_mapping, max_context_len)
        positions = slots.context_lens[slot_mapping].clamp(min=0).long()
        with named_range("labkit.model.forward"):
            logits = self.gpt2.decode_one_token(slots.last_token_ids[slot_mapping], positions, self.attention)
        with named_range("labkit.sample"):
            if is_greedy:
                return self.advance(sample_greedy(logits), slot_mapping)
            return self.draw_and_advance(logits, slot_mapping)

    def draw_and_advance(self, logits: Tensor, slot_mapping: Tensor) -> Tensor:
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
        """Every slot of a request moves on by its token; that of nobody stays where it is."""
        slots = self.slots
        lens = slots.context_lens[slot_mapping]
        slots.last_token_ids[slot_mapping] = token_ids.clamp(min=0)
        slots.context_lens[slot_mapping] = torch.where(lens < 0, lens, lens + 1)
        return token_ids
