"""Lesson 07: what the reader's attention kernel is made of, and who touches which place."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.kernels import PagedAttentionAppend, triton_status
from labkit.kernels.paged_attention_append import check_paged_attention_append
from labkit.kernels.triton_runtime import check_launchable, tl, triton
from labkit.watch.accesses import KernelRun, record_accesses

# --- what the reader's attention kernel is made of: its loop over the past, and its launch -------------


@triton.jit
def attend(
    query,
    key,
    value,
    length,
    row_ptr,
    h,
    k_cache_ptr,
    v_cache_ptr,
    stride_n,
    D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """One head's attention [D] of a new token: to itself, and to the `length` tokens before it, by block."""
    t, d = tl.arange(0, BLOCK_SIZE), tl.arange(0, D)
    query = query.to(tl.float32) * D**-0.5
    largest = tl.sum(query * key.to(tl.float32), axis=0)  # the largest score so far: the token's own
    total = tl.exp(largest - largest)  # of exp(score - largest) so far: 1
    acc = value.to(tl.float32)
    for start in range(0, length, BLOCK_SIZE):
        block = tl.load(row_ptr + start // BLOCK_SIZE).to(tl.int64)
        place = block * stride_n + (h * BLOCK_SIZE + t[:, None]) * D + d[None, :]
        is_past = start + t < length
        keys = tl.load(k_cache_ptr + place, mask=is_past[:, None], other=0.0).to(tl.float32)
        values = tl.load(v_cache_ptr + place, mask=is_past[:, None], other=0.0).to(tl.float32)
        scores = tl.where(is_past, tl.sum(query[None, :] * keys, axis=1), float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=0))
        correction = tl.exp(largest - new_largest)
        weights = tl.exp(scores - new_largest)
        acc = acc * correction + tl.sum(weights[:, None] * values, axis=0)
        total = total * correction + tl.sum(weights, axis=0)
        largest = new_largest
    return acc / total


def launch(kernel: Any, *arguments: Any) -> Tensor:
    """Launch the reader's kernel, one program per request and head, and return its output [B, H, D].

    Takes, after the kernel, what a `PagedAttentionAppend` does. Block size and head size are powers of 2;
    query, key and value have the same strides, and a block's keys lie in one piece.
    Raises ValueError for arguments that do not fit, and TritonUnavailableError where no kernel runs.
    """
    *tensors, _ = arguments
    query, key_new, value_new, k_cache_layer, v_cache_layer, block_table, context_lens, slot_mapping = tensors
    check_paged_attention_append(*tensors)
    check_launchable(query.device)
    B, H, D = query.shape
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    caches = k_cache_layer, v_cache_layer, k_cache_layer.stride(0)
    slots = block_table, block_table.stride(0), context_lens, slot_mapping
    new = query, key_new, value_new, *query.stride()[:2]
    kernel[(B, H)](*new, *caches, *slots, out, D=D, BLOCK_SIZE=k_cache_layer.shape[2])
    return out


# --- who reads what a program of the attention kernel writes -------------------------------------------


def record_attention(
    attention: PagedAttentionAppend,
    tables: Sequence[Sequence[int]],
    context_lens: Sequence[int],
    num_blocks: int,
    block_size: int = 4,
) -> KernelRun | None:
    """What each program reads and writes, for requests with one head of 2 numbers; None without Triton."""
    if triton_status().mode == "off":
        return None
    like = torch.Generator().manual_seed(0)
    device = "cuda" if triton_status().mode == "native" else "cpu"
    query, key, value = torch.randn(len(tables), 3, 1, 2, generator=like).to(device).unbind(1)
    k_cache, v_cache = torch.randn(2, num_blocks, 1, block_size, 2, generator=like).to(device)
    table, lengths = (torch.tensor(each, dtype=torch.int32, device=device) for each in (tables, context_lens))
    slot_mapping = torch.arange(len(tables), device=device)
    with record_accesses() as runs:
        attention(query, key, value, k_cache, v_cache, table, lengths, slot_mapping, max(context_lens))
    return runs[-1]
