"""Prompts that lie behind each other without pads: their keys and values into the paged cache, and their
attention over it.

T rows of a chunk, each a token of one of P prompts, H heads, D head size, N blocks in the pool, M blocks per
row of the block table. A prompt may have tokens in the cache already: those of its earlier chunks, or of a
cached prefix.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class PackedRows(NamedTuple):
    """Whose tokens the rows of a chunk are; on the device.

    Rows starts[p] to starts[p + 1] - 1 are the next tokens of prompt p; there may be none. Rows from
    starts[P] on are pads.
    """

    starts: Tensor  # [P + 1] int32, from 0 on, not falling
    context_lens: Tensor  # [P] int32: tokens of the prompt in the cache, before its first row here
    block_tables: Tensor  # [P, M] int32: its blocks, with room for its rows

    def prompts(self) -> list[tuple[int, slice, int]]:
        """The prompts that have rows: their place, their rows, and their tokens before (the host waits)."""
        bounds, lens = self.starts.tolist(), self.context_lens.tolist()
        each = zip(bounds, bounds[1:], lens, strict=False)
        return [(p, slice(a, b), n) for p, (a, b, n) in enumerate(each) if a < b]


def kv_append_packed_plain(
    k_cache_layer: Tensor,  # [N, H, block_size, D]
    v_cache_layer: Tensor,
    key: Tensor,  # [T, H, D]
    value: Tensor,
    rows: PackedRows,
) -> None:
    """Store the keys and values of a chunk's rows behind those that their prompts have in the cache.

    Plain PyTorch: the oracle of `kv_append_packed_triton`.
    """
    block_size = k_cache_layer.shape[2]
    for p, own, num_before in rows.prompts():
        positions = torch.arange(num_before, num_before + own.stop - own.start, device=key.device)
        block_idx, pos = rows.block_tables[p, positions // block_size].long(), positions % block_size
        k_cache_layer[block_idx, :, pos] = key[own]
        v_cache_layer[block_idx, :, pos] = value[own]


def packed_attention_plain(
    query: Tensor,  # [T, H, D]
    k_cache_layer: Tensor,  # [N, H, block_size, D]
    v_cache_layer: Tensor,
    rows: PackedRows,
) -> Tensor:
    """Causal attention [T, H, D] of each row over its prompt's tokens up to its own, which are all in the
    cache; zeros for pads.

    Plain PyTorch: the oracle of `packed_attention_triton`.
    """
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    block_size = k_cache_layer.shape[2]
    for p, own, num_before in rows.prompts():
        num_tokens = num_before + own.stop - own.start
        table = rows.block_tables[p, : -(-num_tokens // block_size)].long()
        keys, values = (
            cache[table].transpose(0, 1).flatten(1, 2)[:, :num_tokens]  # [H, num_tokens, D]
            for cache in (k_cache_layer, v_cache_layer)
        )
        position = torch.arange(num_tokens, device=query.device)
        visible = position <= position[num_before:, None]
        attended = F.scaled_dot_product_attention(
            query[own].transpose(0, 1)[None], keys[None], values[None], attn_mask=visible
        )[0]
        out[own] = attended.transpose(0, 1)
    return out
