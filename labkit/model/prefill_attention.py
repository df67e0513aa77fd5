"""Attention of a prefill: causal over the prompts' own tokens, and over what was cached before them.

Shapes: B batch, T new tokens, P past tokens, H heads, G heads of keys and values, D head size, L layers.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class PastKV(NamedTuple):
    """Keys and values computed earlier, one row per prompt, padded at the end to a common length P."""

    keys: Tensor  # [L, B, G, P, D]
    values: Tensor  # [L, B, G, P, D]
    lengths: Tensor  # [B]


class CausalAttention:
    """Causal attention of new tokens over themselves; keeps each layer's keys and values for the
    cache."""

    def __init__(self, pads: Tensor) -> None:
        """pads: [B, T], True where a row has no token. No token sees a pad, but 0 times a NaN would be one,
        so attention gets zeros in their place."""
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self._pads = pads[:, None, :, None]

    def __call__(self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = self.kept(key, value)
        return grouped_attention(query, key, value, is_causal=True)

    def kept(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keep a layer's keys and values for the cache; those that attention may read."""
        self.keys.append(key)
        self.values.append(value)
        return key.masked_fill(self._pads, 0), value.masked_fill(self._pads, 0)


class PastAttention(CausalAttention):
    """Attention of new tokens over cached ones and, causally, over themselves; keeps each layer's new keys
    and values for the cache."""

    def __init__(self, past: PastKV, num_new: int, pads: Tensor) -> None:
        super().__init__(pads)
        self.past = past
        B, P = len(past.lengths), past.keys.shape[3]
        device = past.lengths.device
        in_past = torch.arange(P, device=device) < past.lengths[:, None]  # [B, P]
        causal = torch.ones(num_new, num_new, dtype=torch.bool, device=device).tril()
        self.visible = torch.cat(
            [in_past[:, None].expand(B, num_new, P), causal.expand(B, num_new, num_new)], dim=2
        )[:, None]  # [B, 1, T, P + T]

    def __call__(self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = self.kept(key, value)
        all_keys = torch.cat([self.past.keys[layer_idx], key], dim=2)  # [B, G, P + T, D]
        all_values = torch.cat([self.past.values[layer_idx], value], dim=2)
        return grouped_attention(query, all_keys, all_values, attn_mask=self.visible)


def grouped_attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Attention of queries [B, H, T, D] over keys and values [B, G, P, D], each for H / G queries in a row.

    They are repeated here: of PyTorch's attention, the memory-efficient one takes no groups.
    """
    if (group := query.shape[1] // key.shape[1]) > 1:
        key, value = (each.repeat_interleave(group, dim=1) for each in (key, value))
    return F.scaled_dot_product_attention(query, key, value, **options)
