"""Lesson 09: attention in two kernels, as flash-decoding has it: partial softmaxes, then the reader's merge.

B requests, H heads, D head size; a row is one request's head, row b * H + h.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.kernels import triton_status
from labkit.kernels.paged_attention_append import check_paged_attention_append
from labkit.kernels.triton_runtime import tl, triton

SPLITS = 4  # programs per row
PIECE = 8  # tokens that a program reads at a time: few, so that a short text has work for all

# (largest [R, SPLITS], totals [R, SPLITS], accs [R, SPLITS, D]) -> attention [R, D]
Merge = Callable[[Tensor, Tensor, Tensor], Tensor]


class SplitThenMerge:
    """Attention, and the store of the new token, as a `PagedAttentionAppend`: `SPLITS` programs per row, and
    a merge of their parts."""

    num_kernels = 2

    def __init__(self, merge: Merge) -> None:
        self.merge = merge

    def __call__(self, *arguments: Any) -> Tensor:
        query, *_, max_context_len = arguments
        tensors = arguments[:-1]
        check_paged_attention_append(*tensors)
        if triton_status().mode == "native":
            parts = partial_softmaxes_triton(*tensors)
        else:
            parts = partial_softmaxes_plain(*tensors, max_context_len)
        return self.merge(*parts).view_as(query).to(query.dtype)


def partial_softmaxes_plain(
    query: Tensor,
    key_new: Tensor,
    value_new: Tensor,
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    slot_mapping: Tensor,
    max_context_len: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """What a `Merge` takes, of each program's share of the tokens; the new token is stored.

    Plain PyTorch, for where kernels are interpreted: one by one, these programs would take minutes.
    """
    B, H, D = query.shape
    block_size = k_cache_layer.shape[2]
    table, lens = block_table[slot_mapping].long(), context_lens[slot_mapping].long()
    past = lens.clamp(min=0)
    token = torch.arange(max_context_len + 1, device=query.device)  # the last one stands for the new token
    block, pos = table[:, (token // block_size).clamp(max=table.shape[1] - 1)], token % block_size

    def gather(cache: Tensor, new: Tensor) -> Tensor:
        tokens = cache[block, :, pos].float()  # [B, T + 1, H, D]
        return torch.cat([tokens[:, :-1], new[:, None].float()], dim=1)

    live = token < past[:, None]
    live[:, -1] = True
    keys = gather(k_cache_layer, key_new)
    values = gather(v_cache_layer, value_new).masked_fill(~live[:, :, None, None], 0)
    scores = torch.einsum("bhd,bthd->bht", query.float(), keys) * D**-0.5
    owner = token // PIECE % SPLITS
    owner[-1] = 0
    mine = live[:, None] & (owner == torch.arange(SPLITS, device=query.device)[:, None])  # [B, SPLITS, T + 1]
    scores = scores[:, :, None].masked_fill(~mine[:, None], -torch.inf)  # [B, H, SPLITS, T + 1]
    largest = scores.amax(-1)
    weights = (scores - largest.clamp(min=torch.finfo().min)[..., None]).exp()
    accs = torch.einsum("bhst,bthd->bhsd", weights, values)
    b = (lens >= 0).nonzero()[:, 0]
    block, pos = table[b, past[b] // block_size], past[b] % block_size
    k_cache_layer[block, :, pos], v_cache_layer[block, :, pos] = key_new[b], value_new[b]
    return largest.view(B * H, SPLITS), weights.sum(-1).view(B * H, SPLITS), accs.view(B * H, SPLITS, D)


def partial_softmaxes_triton(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a `Merge` takes, of each program's share of the tokens; the new token is stored. One kernel.

    tensors: as `partial_softmaxes_plain` takes them.
    """
    query, key_new, value_new, k_cache_layer, _, block_table, *_ = tensors
    B, H, D = query.shape
    float32 = {"dtype": torch.float32, "device": query.device}
    largest, totals = torch.empty(2, B * H, SPLITS, **float32)
    accs = torch.empty(B * H, SPLITS, D, **float32)
    _partial_softmax_kernel[(SPLITS, H, B)](
        *tensors,
        largest,
        totals,
        accs,
        D**-0.5,
        *query.stride()[:2],
        *key_new.stride()[:2],
        *value_new.stride()[:2],
        *k_cache_layer.stride()[:3],
        block_table.stride(0),
        D,
        k_cache_layer.shape[2],
        SPLITS=SPLITS,
        PIECE=PIECE,
        BLOCK_D=triton.next_power_of_2(D),
    )
    return largest, totals, accs


def launch_merge(kernel: Any, largest: Tensor, totals: Tensor, accs: Tensor) -> Tensor:
    """The parts of each row in one, by the reader's kernel: [R, D], a program per row.

    Where Triton cannot run, `merge_plain` stands for it.
    """
    if triton_status().mode == "off":
        return merge_plain(largest, totals, accs)
    num_rows, num_parts, D = accs.shape
    out = accs.new_full((num_rows, D), torch.nan)
    blocks = {"BLOCK_S": triton.next_power_of_2(num_parts), "BLOCK_D": triton.next_power_of_2(D)}
    kernel[(num_rows,)](largest, totals, accs, out, num_parts, D, **blocks)
    return out


def merge_plain(largest: Tensor, totals: Tensor, accs: Tensor) -> Tensor:
    """The parts of each row in one, in plain PyTorch."""
    weights = (largest - largest.amax(1, keepdim=True)).exp()  # [R, SPLITS]
    return (weights[:, :, None] * accs).sum(1) / (weights * totals).sum(1, keepdim=True)


@triton.jit
def _partial_softmax_kernel(
    query_ptr,
    key_new_ptr,
    value_new_ptr,
    k_cache_ptr,
    v_cache_ptr,
    block_table_ptr,
    context_lens_ptr,
    slot_mapping_ptr,
    largest_ptr,
    totals_ptr,
    accs_ptr,
    scale,
    query_stride_b,
    query_stride_h,
    key_stride_b,
    key_stride_h,
    value_stride_b,
    value_stride_h,
    cache_stride_n,
    cache_stride_h,
    cache_stride_t,
    table_stride_s,
    D,
    block_size,
    SPLITS: tl.constexpr,
    PIECE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """One program's share of a row: every SPLITS-th piece of PIECE tokens; the first one has the new token,
    too, and stores it."""
    split, h, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    t = tl.arange(0, PIECE)
    d = tl.arange(0, BLOCK_D)
    in_head = d < D
    slot = tl.load(slot_mapping_ptr + b)
    context_len = tl.load(context_lens_ptr + slot)
    table_ptr = block_table_ptr + slot * table_stride_s
    query = tl.load(query_ptr + b * query_stride_b + h * query_stride_h + d, mask=in_head, other=0.0)
    query = query.to(tl.float32) * scale
    key = tl.load(key_new_ptr + b * key_stride_b + h * key_stride_h + d, mask=in_head, other=0.0)
    value = tl.load(value_new_ptr + b * value_stride_b + h * value_stride_h + d, mask=in_head, other=0.0)
    if (split == 0) & (context_len >= 0):
        block = tl.load(table_ptr + context_len // block_size).to(tl.int64)
        place = block * cache_stride_n + h * cache_stride_h + (context_len % block_size) * cache_stride_t + d
        tl.store(k_cache_ptr + place, key, mask=in_head)
        tl.store(v_cache_ptr + place, value, mask=in_head)

    is_first = (split == 0).to(tl.float32)
    own_score = tl.sum(query * key.to(tl.float32), axis=0)
    largest = tl.where(split == 0, own_score, float("-inf"))
    total = is_first
    acc = value.to(tl.float32) * is_first
    for start in range(split * PIECE, context_len, SPLITS * PIECE):
        token = start + t
        live = token < context_len
        block = tl.load(table_ptr + token // block_size, mask=live, other=0).to(tl.int64)
        row = block * cache_stride_n + h * cache_stride_h + (token % block_size) * cache_stride_t
        mask = live[:, None] & in_head[None, :]
        keys = tl.load(k_cache_ptr + row[:, None] + d[None, :], mask=mask, other=0.0).to(tl.float32)
        values = tl.load(v_cache_ptr + row[:, None] + d[None, :], mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(live, tl.sum(query[None, :] * keys, axis=1), float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=0))
        correction = tl.exp(largest - new_largest)
        weights = tl.exp(scores - new_largest)
        total = total * correction + tl.sum(weights, axis=0)
        acc = acc * correction + tl.sum(weights[:, None] * values, axis=0)
        largest = new_largest
    part = (b * tl.num_programs(1) + h) * SPLITS + split
    tl.store(largest_ptr + part, largest)
    tl.store(totals_ptr + part, total)
    tl.store(accs_ptr + part * D + d, acc, mask=in_head)
