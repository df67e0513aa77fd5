"""Attention that stores the new token, for queries that share a head of keys and values in groups
(grouped-query attention, Ainslie et al., 2023): a program serves a whole group, so that each key and value is
read once.

It does what `split_attention` and `shared_attention` do, with products on tensor cores in the place of sums,
because a group's queries make a matrix. Where a GPU's TMA brings keys and values in boxes, a piece of tokens
each, many groups of one gain by it, too: asking for a box takes one instruction, and no register until it is
there. B requests, S slots, H heads of queries, G heads of keys and values, D head size; query head h belongs
to group h // (H / G).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.kernels.eight_bit import dequantized, is_eight_bit, quantized, store_scales
from labkit.kernels.head_transform import NO_TRANSFORM, HeadTransform, load_heads, load_turn
from labkit.kernels.running_softmax import add_group_piece, load_piece, merge_group
from labkit.kernels.tile_product import must_upcast
from labkit.kernels.triton_runtime import HAS_BOXES, INTERPRETED, Boxes, early_launch, is_hopper, tl, triton

LEAST_SIDE = 16  # of a matrix that a product on tensor cores takes
NUMBERS_AT_ONCE = 256  # of parts, that a program asks for before it waits for any: as registers have room


class Programs(NamedTuple):
    """How a launch's programs are made, and how many to make: measured on an H100 and an H200."""

    num_warps: int  # of a program, which reads as many times the tokens of one warp at a time
    num_registers: int  # of a thread, at most
    at_once: int


# By rows times heads of keys. With few, a program has eight warps in 16 bits: more of its tokens are there
# before the wait, and fewer parts have to be put together.
NARROW = Programs(1, 255, 1056)
WIDE = Programs(8, 255, 132)
FEW_HEADS = 64
FEW_OUTPUTS = 1024  # of all heads of a row
BOX_STAGES = 3  # of the loop over boxes: one piece more is on its way while another has its turn


def group_programs(batch_size: int, num_heads: int, num_kv_heads: int, dtype: torch.dtype) -> Programs:
    """The programs for so many rows, of heads of keys that several queries share, in a cache of `dtype`. In 8
    bits wide programs, and many of them, were slower."""
    if num_kv_heads == num_heads or dtype.itemsize != 2:
        return NARROW
    return WIDE if batch_size * num_kv_heads <= FEW_HEADS else NARROW


def are_boxed(head_dim: int, dtype: torch.dtype, block_size: int, tokens: int, device: torch.device) -> bool:
    """Whether pieces of so many tokens come in boxes, from blocks of a cache that is contiguous: those of 16
    bits, of heads as wide as a program's tile, by a Hopper GPU or in the interpreter, and none that is in two
    blocks."""
    if not (HAS_BOXES and (INTERPRETED or is_hopper(device))):
        return False
    return dtype.itemsize == 2 and head_dim == width_of(head_dim) and block_size % tokens == 0


def width_of(head_dim: int) -> int:
    """The numbers of a head in a program's tile: a power of 2."""
    return max(LEAST_SIDE, triton.next_power_of_2(head_dim))


def turn_of_last(boxed: bool, programs: Programs, query: Tensor, cache: Tensor) -> str:
    """When a program has its last piece, the only one that may not be full: "first", and all others as they
    come; or in a loop that asks for each a turn ahead, "in line", where it asks for one more that is not
    there, or "behind" it. Measured on an H200."""
    is_wide, D = programs.num_warps > 1, cache.shape[-1]
    if boxed or (is_wide and D > 64):
        return "first"
    is_small = D <= 64 and query.element_size() == 2  # else there are no registers for it
    return "behind" if is_small and (is_wide or is_eight_bit(cache)) else "in line"


def turn_of_next(batch_size: int, num_heads: int, num_kv_heads: int, head_dim: int) -> str:
    """When the kernel behind this one may begin, which asks for its weights then, and takes room from this
    one's programs: "at once", or with few heads "before the wait". Where groups have few outputs, so that
    there are few weights to ask for, later: "behind the wait", or with many heads "at the end". Measured on
    an H200."""
    has_few_heads = batch_size * num_kv_heads <= FEW_HEADS
    if num_kv_heads < num_heads and num_heads * head_dim <= FEW_OUTPUTS:
        return "behind the wait" if has_few_heads else "at the end"
    return "before the wait" if has_few_heads else "at once"


def boxes_of(cache: Tensor, tokens: int) -> Any:
    """A layer's keys or values [N, G, block_size, D] as the TMA sees them, in boxes of so many tokens of a
    head; None where it can't."""
    block_size, D = cache.shape[2:]
    if not cache.is_contiguous() or not are_boxed(D, cache.dtype, block_size, tokens, cache.device):
        return None
    rows = cache.numel() // D
    return Boxes(cache, [rows, D], [D, 1], [tokens, D])


def launch_grouped(
    query: Tensor,  # [B, H, D]
    key_new: Tensor,  # [B, G, D]
    value_new: Tensor,
    k_cache_layer: Tensor,  # [N, G, block_size, D]
    v_cache_layer: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    slot_mapping: Tensor | None = None,
    partials: Sequence[Tensor | None] = (None, None, None),
    transform: HeadTransform | None = None,
    tokens: int = LEAST_SIDE,
    splits: int = 1,
    shares: Sequence[Tensor] | None = None,
    num_shares: int = 0,
    programs: Programs = NARROW,
) -> Tensor:  # [B, H, D]
    """Attend and store in one kernel, of arguments that were checked: with `splits` programs per request and
    head of keys, or with one for each of num_shares shares of a plan. Without a slot mapping row b is in slot
    b, and nothing is stored.

    partials: a workspace's, for H heads. Only with them may the kernel begin before the one in front ends: it
    is a fused step's, and writes none of slots, tables and cache. tokens: that a program reads at
    a time, or LEAST_SIDE. shares: a plan's row_of, slot_of, first_of, end_of, first_share and num_shares.
    """
    B, H, D = query.shape
    _, G, block_size, _ = k_cache_layer.shape
    cos, sin, query_norm, key_norm, eps = transform or NO_TRANSFORM
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    block_d = width_of(D)
    width = max(LEAST_SIDE, tokens)
    boxes: tuple[object, object] = (None, None)
    if shares is None or tokens == width:  # else a share may begin within a box, which would leave its block
        boxes = boxes_of(k_cache_layer, width), boxes_of(v_cache_layer, width)
    _grouped_paged_attn_append_kernel[(G, B * splits if shares is None else num_shares)](
        query,
        key_new,
        value_new,
        k_cache_layer,
        v_cache_layer,
        *boxes,
        block_table,
        context_lens,
        slot_mapping,
        *(shares or [None] * 6),
        cos,
        sin,
        query_norm,
        key_norm,
        *partials,
        out,
        D**-0.5,
        eps,
        *strides_of(query, key_new, value_new, k_cache_layer, block_table, out),
        D,
        block_size,
        block_table.shape[1],
        SPLITS=splits,
        GROUP=H // G,
        UPCAST=must_upcast(query.dtype),
        BLOCK_G=max(LEAST_SIDE, triton.next_power_of_2(H // G)),
        BLOCK_T=width,
        BLOCK_D=block_d,
        STAGES=1 if boxes[0] is None else BOX_STAGES,
        LAST=turn_of_last(boxes[0] is not None, programs, query, k_cache_layer),
        NEXT=turn_of_next(B, H, G, D),
        PARTS_AT_ONCE=max(1, NUMBERS_AT_ONCE // block_d),
        num_warps=programs.num_warps if query.element_size() == 2 else 8,  # no tensor cores, larger rows
        maxnreg=programs.num_registers,  # else it is compiled for fewer, and keeps numbers in memory
        **({"EARLY": False} if partials[0] is None else early_launch(query.device)),
    )
    return out


def strides_of(
    query: Tensor, key_new: Tensor, value_new: Tensor, k_cache_layer: Tensor, block_table: Tensor, out: Tensor
) -> tuple[int, ...]:
    """The strides that kernels of attention take: of the last dimensions they are 1, and of the values' cache
    those of the keys'."""
    heads = *query.stride()[:2], *key_new.stride()[:2], *value_new.stride()[:2]
    return *heads, *k_cache_layer.stride()[:3], block_table.stride(0), *out.stride()[:2]


@triton.jit
def _grouped_paged_attn_append_kernel(
    query_ptr, key_new_ptr, value_new_ptr, k_cache_ptr, v_cache_ptr, key_boxes, value_boxes, block_table_ptr,
    context_lens_ptr, slot_mapping_ptr, row_of_ptr, slot_of_ptr, first_of_ptr, end_of_ptr, first_share_ptr,
    num_shares_ptr, cos_ptr, sin_ptr, query_norm_ptr, key_norm_ptr, partial_out_ptr, partial_softmax_ptr,
    arrived_ptr, out_ptr,
    scale, eps,
    query_stride_b, query_stride_h, key_stride_b, key_stride_h, value_stride_b, value_stride_h,
    cache_stride_n, cache_stride_h, cache_stride_t, table_stride_s, out_stride_b, out_stride_h,
    D, block_size, table_size,
    SPLITS: tl.constexpr, GROUP: tl.constexpr, UPCAST: tl.constexpr, BLOCK_G: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, STAGES: tl.constexpr, LAST: tl.constexpr,
    NEXT: tl.constexpr, PARTS_AT_ONCE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A program takes a part of a row's tokens, for one head of keys, in pieces of BLOCK_T: every SPLITS-th
    piece, or a share of the plan. Programs without a share come last, and leave."""
    if EARLY and NEXT == "at once":
        tl.extra.cuda.gdc_launch_dependents()
    g = tl.program_id(0)
    w = tl.program_id(1)
    G = tl.num_programs(0)
    H = G * GROUP
    q = tl.arange(0, BLOCK_G)
    t = tl.arange(0, BLOCK_T)
    d = tl.arange(0, BLOCK_D)
    in_head = d < D
    h = g * GROUP + q
    in_group = (q < GROUP)[:, None] & in_head[None, :]
    if row_of_ptr is not None:
        b = tl.load(row_of_ptr + w)
        slot = tl.load(slot_of_ptr + w).to(tl.int64)
        first = tl.load(first_of_ptr + w)
        end = tl.load(end_of_ptr + w)
        step = BLOCK_T
    else:
        b = w // SPLITS
        slot = b.to(tl.int64)
        first = w % SPLITS * BLOCK_T
        step = SPLITS * BLOCK_T
        if slot_mapping_ptr is not None:
            slot = tl.load(slot_mapping_ptr + b)
    if b >= 0:
        context_len = tl.load(context_lens_ptr + slot)
        table_ptr = block_table_ptr + slot * table_stride_s
        if row_of_ptr is not None:
            num_parts = tl.load(num_shares_ptr + b)
            first_part = tl.load(first_share_ptr + b)
        else:
            num_parts = SPLITS
            first_part = b * SPLITS
            end = context_len
        # One piece is asked for before the kernel before this one, which does not write it, has ended.
        stop = first + tl.maximum(end - first - 1, 0) // step * step  # where the last piece begins
        pools = k_cache_ptr, v_cache_ptr
        layout = cache_stride_n, cache_stride_h, cache_stride_t, block_size, D, table_size
        begin = stop if LAST == "first" else first
        piece = load_piece(pools, layout, table_ptr, begin, end, g, t, d)
        next_block = tl.load(table_ptr + tl.minimum(first // block_size, table_size - 1))
        cos, sin = load_turn(cos_ptr, sin_ptr, tl.maximum(context_len, 0), d, D)
        # Plan and slots do not change within a step; query, key and value come from the kernel before.
        if EARLY:
            if NEXT == "before the wait":
                tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()
            if NEXT == "behind the wait":
                tl.extra.cuda.gdc_launch_dependents()
        queries = query_ptr + b * query_stride_b + h[:, None] * query_stride_h
        query = load_heads(queries, in_group, d, query_norm_ptr, eps, cos_ptr, cos, sin, D)
        own = key_new_ptr + b * key_stride_b + g * key_stride_h
        key = load_heads(own, in_head[None, :], d, key_norm_ptr, eps, cos_ptr, cos, sin, D)
        own = value_new_ptr + b * value_stride_b + g * value_stride_h
        value = tl.load(own + d[None, :], mask=in_head[None, :], other=0.0)
        kept_key, key_scale = quantized(key, k_cache_ptr)
        kept_value, value_scale = quantized(value, v_cache_ptr)
        if (first == 0) & (context_len >= 0) & (slot_mapping_ptr is not None):
            block = tl.load(table_ptr + context_len // block_size).to(tl.int64)
            head = block * cache_stride_n + g * cache_stride_h
            pos = context_len % block_size
            row = head + pos * cache_stride_t + d[None, :]
            tl.store(k_cache_ptr + row, kept_key, mask=in_head[None, :])
            tl.store(v_cache_ptr + row, kept_value, mask=in_head[None, :])
            store_scales(k_cache_ptr, head, pos, key_scale, None, block_size, D)
            store_scales(v_cache_ptr, head, pos, value_scale, None, block_size, D)
        # The token sees itself as all later ones will.
        key = dequantized(kept_key, key_scale, query.dtype)
        value = dequantized(kept_value, value_scale, query.dtype)

        # Each query has a softmax, which begins with the current token's score. One program alone counts it.
        largest = tl.sum(query.to(tl.float32) * key.to(tl.float32), axis=1) * scale
        has_own = (first == 0).to(tl.float32)
        total = tl.zeros([BLOCK_G], tl.float32) + has_own
        acc = tl.zeros([BLOCK_G, BLOCK_D], tl.float32) + has_own * value.to(tl.float32)
        if UPCAST:
            query = query.to(tl.float32)
        kept: tl.constexpr = k_cache_ptr.dtype.element_ty
        softmax = largest, total, acc
        if LAST == "first":
            softmax = add_group_piece(query, piece, stop + t < end, softmax, scale, kept, UPCAST)
            for start in tl.range(first, stop, step, num_stages=STAGES):
                if key_boxes is not None:
                    # of all tokens' rows, of which the TMA counts no more than 2^31
                    row = (next_block * G + g) * block_size + start % block_size
                    _, _, key_scales, value_scales = piece
                    piece = key_boxes.load([row, 0]), value_boxes.load([row, 0]), key_scales, value_scales
                    next_block = tl.load(table_ptr + tl.minimum((start + step) // block_size, table_size - 1))
                else:
                    piece = load_piece(pools, layout, table_ptr, start, end, g, t, d)
                softmax = add_group_piece(query, piece, t < BLOCK_T, softmax, scale, kept, UPCAST)
        else:
            for start in range(first, end if LAST == "in line" else stop, step):
                live = start + t < end if LAST == "in line" else t < BLOCK_T
                softmax = add_group_piece(query, piece, live, softmax, scale, kept, UPCAST)
                piece = load_piece(pools, layout, table_ptr, start + step, end, g, t, d)
            if LAST == "behind":
                softmax = add_group_piece(query, piece, stop + t < end, softmax, scale, kept, UPCAST)
        largest, total, acc = softmax

        if EARLY and NEXT == "at the end":
            tl.extra.cuda.gdc_launch_dependents()
        out_place = out_ptr + b * out_stride_b + h[:, None] * out_stride_h + d[None, :]
        if (SPLITS == 1 and row_of_ptr is None) or num_parts == 1:
            tl.store(out_place, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=in_group)
        else:
            place = w * H + h
            tl.store(partial_out_ptr + place[:, None] * D + d[None, :], acc, mask=in_group)
            tl.store(partial_softmax_ptr + place * 2, largest, mask=q < GROUP)
            tl.store(partial_softmax_ptr + place * 2 + 1, total, mask=q < GROUP)
            tl.debug_barrier()  # all of this program's stores come before it says that it has arrived
            if tl.atomic_add(arrived_ptr + b * G + g, 1, sem="acq_rel") == num_parts - 1:
                partials = partial_out_ptr, partial_softmax_ptr
                out = merge_group(
                    first_part * H + h, num_parts, H, q < GROUP, partials, d, in_group, D, PARTS_AT_ONCE
                )
                tl.store(out_place, out.to(out_ptr.dtype.element_ty), mask=in_group)
                tl.store(arrived_ptr + b * G + g, 0)  # for the next call
