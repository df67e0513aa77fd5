"""Attention of one new token that also stores the token's key and value: one kernel where there were two.

B requests, S slots, H heads, G heads of keys and values, D head size, N blocks in the pool, M blocks per row
of the block table. Query head h sees the key and value head h // (H / G). What a request needs lies in its
slot: `slot_mapping` says which. A context length below 0 marks a row that pads the batch: it sees its own
token alone, and nothing is stored for it.
"""

from typing import Protocol

import torch
from torch import Tensor

from labkit.kernels.checks import check_range, check_tensor
from labkit.kernels.eight_bit import write_heads
from labkit.kernels.head_transform import HeadTransform, check_transform, transform_heads_plain
from labkit.kernels.paged_attention import check_heads, launch_by_heads, paged_attention_plain
from labkit.kernels.triton_runtime import check_launchable, tl, triton


class PagedAttentionAppend(Protocol):
    """Attention of one new token per request over one layer of a paged cache, which also stores that token's
    key and value there. Requests are found through their slots."""

    def __call__(
        self,
        query: Tensor,  # [B, H, D]
        key_new: Tensor,  # [B, G, D], the current token's own
        value_new: Tensor,  # [B, G, D]
        k_cache_layer: Tensor,  # [N, G, block_size, D]
        v_cache_layer: Tensor,  # [N, G, block_size, D]
        block_table: Tensor,  # [S, M] int32, the place of the current token included
        context_lens: Tensor,  # [S] int32, tokens in the cache, the current one not among them
        slot_mapping: Tensor,  # [B] int64
        max_context_len: int,  # at least the largest of the batch's context lengths
    ) -> Tensor:  # [B, H, D]
        ...


def paged_attention_append_plain(
    query: Tensor,
    key_new: Tensor,
    value_new: Tensor,
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    slot_mapping: Tensor,
    max_context_len: int,
    transform: HeadTransform | None = None,
) -> Tensor:
    """Attend, then store the new token's key and value: plain PyTorch, the oracle of all kernels.

    Takes and returns what a `PagedAttentionAppend` does. transform: of queries and keys, before all else.
    Raises ValueError for arguments that do not fit.
    """
    tensors = query, key_new, value_new, k_cache_layer, v_cache_layer
    arguments = *tensors, block_table, context_lens, slot_mapping
    check_paged_attention_append(*arguments, transform=transform, takes_eight_bit=True)
    table, lens = block_table.index_select(0, slot_mapping), context_lens[slot_mapping]
    past = lens.clamp(min=0)
    if transform is not None:
        query = transform_heads_plain(query, past, transform.query_norm, transform)
        key_new = transform_heads_plain(key_new, past, transform.key_norm, transform)
    out = paged_attention_plain(
        query, key_new, value_new, k_cache_layer, v_cache_layer, table, past, max_context_len
    )
    block_size = k_cache_layer.shape[2]
    b = (lens >= 0).nonzero()[:, 0]
    block_idx, pos = table[b, past[b] // block_size].long(), (past[b] % block_size).long()
    write_heads(k_cache_layer, (block_idx, slice(None), pos), key_new[b])
    write_heads(v_cache_layer, (block_idx, slice(None), pos), value_new[b])
    return out


def paged_attention_append_triton(
    query: Tensor,
    key_new: Tensor,
    value_new: Tensor,
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    slot_mapping: Tensor,
    max_context_len: int,
) -> Tensor:
    """Attend and store the new token's key and value in one kernel: one program per request and head of
    keys, for the queries of its group. Query, key and value may be views.

    Takes and returns what a `PagedAttentionAppend` does. Raises ValueError for arguments that do not fit, and
    TritonUnavailableError where no kernel runs.
    """
    tensors = query, key_new, value_new, k_cache_layer, v_cache_layer
    arguments = *tensors, block_table, context_lens, slot_mapping
    check_paged_attention_append(*arguments)
    check_launchable(query.device)
    return launch_by_heads(_paged_attn_append_kernel, *arguments)


@triton.jit
def _paged_attn_append_kernel(
    query_ptr, key_new_ptr, value_new_ptr, k_cache_ptr, v_cache_ptr, block_table_ptr, context_lens_ptr,
    slot_mapping_ptr, out_ptr,
    scale,
    query_stride_b, query_stride_h, key_stride_b, key_stride_h, value_stride_b, value_stride_h,
    cache_stride_n, cache_stride_h, cache_stride_t, table_stride_s, out_stride_b, out_stride_h,
    D, block_size,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program per request and head: the softmax of `_paged_attn_decode_kernel`, and a store of the
    current token at the end of its sequence."""
    b = tl.program_id(0)
    h = tl.program_id(1)
    t = tl.arange(0, BLOCK_T)
    d = tl.arange(0, BLOCK_D)
    in_head = d < D
    slot = tl.load(slot_mapping_ptr + b)
    context_len = tl.load(context_lens_ptr + slot)
    table_ptr = block_table_ptr + slot * table_stride_s
    query = tl.load(query_ptr + b * query_stride_b + h * query_stride_h + d, mask=in_head, other=0.0)
    query = query.to(tl.float32) * scale
    key = tl.load(key_new_ptr + b * key_stride_b + h * key_stride_h + d, mask=in_head, other=0.0)
    value = tl.load(value_new_ptr + b * value_stride_b + h * value_stride_h + d, mask=in_head, other=0.0)
    if context_len >= 0:
        # int64: in a large pool, block * stride passes 2^31
        block = tl.load(table_ptr + context_len // block_size).to(tl.int64)
        place = block * cache_stride_n + h * cache_stride_h + (context_len % block_size) * cache_stride_t + d
        tl.store(k_cache_ptr + place, key, mask=in_head)
        tl.store(v_cache_ptr + place, value, mask=in_head)
    largest = tl.sum(query * key.to(tl.float32), axis=0)  # of the scores so far
    total = tl.exp(largest - largest)  # of exp(score - largest) so far: 1
    acc = value.to(tl.float32)

    for start in range(0, context_len, block_size):
        block = tl.load(table_ptr + start // block_size).to(tl.int64)
        written = (t < block_size) & (start + t < context_len)
        place = block * cache_stride_n + h * cache_stride_h + t[:, None] * cache_stride_t + d[None, :]
        mask = written[:, None] & in_head[None, :]
        keys = tl.load(k_cache_ptr + place, mask=mask, other=0.0).to(tl.float32)
        values = tl.load(v_cache_ptr + place, mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(written, tl.sum(query[None, :] * keys, axis=1), float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=0))
        correction = tl.exp(largest - new_largest)
        weights = tl.exp(scores - new_largest)
        acc = acc * correction + tl.sum(weights[:, None] * values, axis=0)
        total = total * correction + tl.sum(weights, axis=0)
        largest = new_largest
    out = (acc / total).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + b * out_stride_b + h * out_stride_h + d, out, mask=in_head)


def check_paged_attention_append(
    *tensors: Tensor, transform: HeadTransform | None = None, takes_eight_bit: bool = False
) -> None:
    """Raises ValueError naming the first argument whose shape, stride, dtype or device does not fit.

    tensors: those of a `PagedAttentionAppend`, in its order. takes_eight_bit: whether the caches may be in
    8 bits, as `eight_bit` keeps them.
    """
    query, *others, block_table, context_lens, slot_mapping = tensors
    check_heads(query, *others, takes_eight_bit=takes_eight_bit)
    integers = {"device": query.device, "last_stride_is_1": True}
    check_tensor("block_table", block_table, shape=("S", "M"), dtype=torch.int32, **integers)
    check_tensor("context_lens", context_lens, shape=(block_table.shape[0],), dtype=torch.int32, **integers)
    check_tensor("slot_mapping", slot_mapping, shape=(len(query),), dtype=torch.int64, **integers)
    check_range("slot_mapping", slot_mapping, block_table.shape[0])
    if transform is not None:
        check_transform(transform, query)
