"""Attention of one new token over a paged cache (PagedAttention, Kwon et al., 2023).

B requests, H heads, G heads of keys and values, D head size, N blocks in the pool, M blocks per row of the
block table. Query head h sees the key and value of head h // (H / G): H / G heads in a row are a group.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from labkit.kernels.checks import check_tensor
from labkit.kernels.eight_bit import as_stored, check_caches, read_slots
from labkit.kernels.grouped_attention import launch_grouped, strides_of
from labkit.kernels.triton_runtime import check_launchable, tl, triton


class PagedAttentionFunction(Protocol):
    """Attention of one new token per request over one layer of a paged cache, which it only reads."""

    def __call__(
        self,
        query: Tensor,  # [B, H, D]
        key_new: Tensor,  # [B, G, D], the current token's own
        value_new: Tensor,  # [B, G, D]
        k_cache_layer: Tensor,  # [N, G, block_size, D]
        v_cache_layer: Tensor,  # [N, G, block_size, D]
        block_table: Tensor,  # [B, M] int32
        context_lens: Tensor,  # [B] int32, tokens in the cache, the current one not among them
        max_context_len: int,  # the largest of context_lens, known to the host
    ) -> Tensor:  # [B, H, D]
        ...


def paged_attention_plain(
    query: Tensor,
    key_new: Tensor,
    value_new: Tensor,
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    max_context_len: int,
) -> Tensor:
    """Gather every request's keys and values into one dense piece and attend to it: simple, and the oracle
    of the kernel.

    Takes and returns what a `PagedAttentionFunction` does. Raises ValueError for arguments that do not fit.
    """
    tensors = query, key_new, value_new, k_cache_layer, v_cache_layer, block_table, context_lens
    check_paged_attention(*tensors, max_context_len=max_context_len, takes_eight_bit=True)
    _, G, block_size, D = k_cache_layer.shape
    # Slots that were never written may hold anything, even NaN, so past its end a request reads its first.
    position = torch.arange(max_context_len, device=query.device)
    hidden = position >= context_lens[:, None]  # [B, T]
    position = torch.where(hidden, 0, position)
    block = block_table.gather(1, position // block_size)
    head = torch.arange(G, device=query.device)[:, None]
    place = block[:, None].long(), head, (position % block_size)[:, None]

    wide = Tensor.double if query.dtype == torch.float64 else Tensor.float

    def gather(cache: Tensor) -> Tensor:  # [B, G, T, D]
        return wide(read_slots(cache, *place, query.dtype))

    groups = wide(query.unflatten(1, (G, -1)))  # [B, G, H / G, D]
    past = groups @ gather(k_cache_layer).transpose(2, 3)  # [B, G, H / G, T]
    past = past.masked_fill(hidden[:, None, None], -torch.inf)
    key_new, value_new = as_stored(key_new, k_cache_layer), as_stored(value_new, v_cache_layer)
    own = (groups * key_new[:, :, None]).sum(3, keepdim=True)  # the token sees itself as all later ones will
    weights = (torch.cat([past, own], dim=3) * D**-0.5).softmax(dim=-1)
    seen = (weights[..., :-1] @ gather(v_cache_layer)).masked_fill(
        (context_lens == 0)[:, None, None, None], 0
    )
    return (seen + weights[..., -1:] * value_new[:, :, None]).flatten(1, 2).to(query.dtype)


def paged_attention_triton(
    query: Tensor,
    key_new: Tensor,
    value_new: Tensor,
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    max_context_len: int,
) -> Tensor:
    """Attention over a paged cache in one kernel that reads the blocks where they lie: one program per
    request and head of keys, for the queries of its group. Query, key and value may be views.

    Takes and returns what a `PagedAttentionFunction` does. Raises ValueError for arguments that do not fit,
    and TritonUnavailableError where no kernel runs.
    """
    tensors = query, key_new, value_new, k_cache_layer, v_cache_layer, block_table, context_lens
    check_paged_attention(*tensors, max_context_len=max_context_len)
    check_launchable(query.device)
    return launch_by_heads(_paged_attn_decode_kernel, *tensors)


def launch_by_heads(kernel: Any, *tensors: Tensor) -> Tensor:
    """Launch a kernel of one program per request and head of queries; where several share a key, that of
    `grouped_attention`. tensors: all that the kernel takes, in its order."""
    query, key_new, value_new, k_cache_layer, _, block_table, *_ = tensors
    B, H, D = query.shape
    _, G, block_size, _ = k_cache_layer.shape
    if G < H:
        return launch_grouped(*tensors)
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    strides = strides_of(query, key_new, value_new, k_cache_layer, block_table, out)
    blocks = {"BLOCK_T": triton.next_power_of_2(block_size), "BLOCK_D": triton.next_power_of_2(D)}
    kernel[(B, H)](*tensors, out, D**-0.5, *strides, D, block_size, **blocks)
    return out


@triton.jit
def _paged_attn_decode_kernel(
    query_ptr, key_new_ptr, value_new_ptr, k_cache_ptr, v_cache_ptr, block_table_ptr, context_lens_ptr,
    out_ptr,
    scale,
    query_stride_b, query_stride_h, key_stride_b, key_stride_h, value_stride_b, value_stride_h,
    cache_stride_n, cache_stride_h, cache_stride_t, table_stride_b, out_stride_b, out_stride_h,
    D, block_size,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program per request and head: a softmax that is corrected as larger scores come (Milakov and
    Gimelshein, 2018), begun with the current token and continued block by block."""
    b = tl.program_id(0)
    h = tl.program_id(1)
    t = tl.arange(0, BLOCK_T)
    d = tl.arange(0, BLOCK_D)
    in_head = d < D
    query = tl.load(query_ptr + b * query_stride_b + h * query_stride_h + d, mask=in_head, other=0.0)
    query = query.to(tl.float32) * scale
    key = tl.load(key_new_ptr + b * key_stride_b + h * key_stride_h + d, mask=in_head, other=0.0)
    value = tl.load(value_new_ptr + b * value_stride_b + h * value_stride_h + d, mask=in_head, other=0.0)
    largest = tl.sum(query * key.to(tl.float32), axis=0)  # of the scores so far
    total = tl.exp(largest - largest)  # of exp(score - largest) so far: 1
    acc = value.to(tl.float32)

    context_len = tl.load(context_lens_ptr + b)
    for start in range(0, context_len, block_size):
        # int64: in a large pool, block * stride passes 2^31
        block = tl.load(block_table_ptr + b * table_stride_b + start // block_size).to(tl.int64)
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


def check_paged_attention(*tensors: Tensor, max_context_len: int, takes_eight_bit: bool = False) -> None:
    """Raises ValueError naming the first argument whose shape, stride, dtype or device does not fit.

    tensors: those of a `PagedAttentionFunction`, in its order. takes_eight_bit: whether the caches may be in
    8 bits, as `eight_bit` keeps them.
    """
    *heads, block_table, context_lens = tensors
    check_heads(*heads, takes_eight_bit=takes_eight_bit)
    query, k_cache_layer = heads[0], heads[3]
    B = len(query)
    integers = {"dtype": torch.int32, "device": query.device, "last_stride_is_1": True}
    check_tensor("block_table", block_table, shape=(B, "M"), **integers)
    check_tensor("context_lens", context_lens, shape=(B,), **integers)
    if max_context_len > (room := block_table.shape[1] * k_cache_layer.shape[2]):
        raise ValueError(f"max_context_len is {max_context_len}, but block_table has room for {room} tokens")


def check_heads(*heads: Tensor, takes_eight_bit: bool) -> None:
    """Raises ValueError naming the first that does not fit the others, of query, key and value of new tokens
    and of both caches."""
    query, key_new, value_new, k_cache_layer, v_cache_layer = heads
    check_tensor("query", query, shape=("B", "H", "D"), last_stride_is_1=True)
    B, H, D = query.shape
    like_query = {"dtype": query.dtype, "device": query.device, "last_stride_is_1": True}
    check_tensor("key_new", key_new, shape=(B, "G", D), **like_query)
    G = key_new.shape[1]
    if not G or H % G:
        raise ValueError(f"key_new has {G} heads, of which the {H} of query are no multiple")
    check_tensor("value_new", value_new, shape=(B, G, D), **like_query)
    check_caches(k_cache_layer, v_cache_layer, G, query, takes_eight_bit)
