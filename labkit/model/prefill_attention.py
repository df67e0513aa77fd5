"""Attention of a prefill: causal over the prompts' own tokens, and over what was cached before them.

Shapes: B batch, T new tokens, P past tokens, H heads, G heads of keys and values, D head size, L layers.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from threading import Lock
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


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


class SharedContext:
    """A context that the first thread to come enters and the last one to go leaves.

    Entered by each thread for itself, one would give back what it had found of another, for good.
    make: a new context, to be entered.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self._make, self._held = make, ExitStack()
        self._lock, self._num_inside = Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._num_inside:
                self._held.enter_context(self._make())
            self._num_inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._num_inside -= 1
            if not self._num_inside:
                self._held.close()


# Not cuDNN's: it makes a plan for every new shape, in each thread anew, and that takes longer than a prefill.
PREFILL_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
PREFILL_ATTENTION = SharedContext(lambda: sdpa_kernel(PREFILL_BACKENDS))  # PyTorch's choice is the process's
