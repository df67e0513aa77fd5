"""Attention of prompts that lie behind each other without pads, over the paged cache, in which their keys and
values are already.

T rows of a chunk, each a token of one of P prompts, H heads, G heads of keys and values, D head size, N
blocks in the pool: see `packed_prompts`. Query head h sees the keys and values of head h // (H / G).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.kernels.eight_bit import dequantized, load_scales, read_heads
from labkit.kernels.head_transform import (
    NO_TRANSFORM,
    HeadTransform,
    load_heads,
    load_turn,
    transform_heads_plain,
)
from labkit.kernels.packed_prompts import PackedRows, check_packed
from labkit.kernels.tile_product import must_upcast
from labkit.kernels.triton_runtime import check_launchable, early_launch, is_hopper, tl, triton


def packed_attention_plain(
    query: Tensor,  # [T, H, D]
    k_cache_layer: Tensor,  # [N, G, block_size, D]
    v_cache_layer: Tensor,
    rows: PackedRows,
    transform: HeadTransform | None = None,
) -> Tensor:
    """Causal attention [T, H, D] of each row over its prompt's tokens up to its own, which are all in the
    cache; zeros for pads. transform: of the queries, before all else.

    Plain PyTorch: the oracle of `packed_attention_triton`. Raises ValueError for arguments that do not fit.
    """
    check_packed(k_cache_layer, v_cache_layer, rows, transform, query=query)
    if transform is not None:
        query = transform_heads_plain(query, rows.positions(len(query)), transform.query_norm, transform)
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    block_size = k_cache_layer.shape[2]
    for p, own, num_before in rows.prompts():
        num_tokens = num_before + own.stop - own.start
        table = rows.block_tables[p, : -(-num_tokens // block_size)].long()
        keys, values = (
            read_heads(cache, table, query.dtype).transpose(0, 1).flatten(1, 2)[:, :num_tokens]
            for cache in (k_cache_layer, v_cache_layer)
        )  # [G, num_tokens, D]
        position = torch.arange(num_tokens, device=query.device)
        visible = position <= position[num_before:, None]
        attended = F.scaled_dot_product_attention(
            query[own].transpose(0, 1)[None],
            keys[None],
            values[None],
            attn_mask=visible,
            enable_gqa=len(keys) < query.shape[1],
        )[0]
        out[own] = attended.transpose(0, 1)
    return out


class PackedTile(NamedTuple):
    """What a program of packed attention has at a time, and how it is compiled."""

    rows: int
    tokens: int
    num_warps: int
    num_stages: int


def packed_tile(num_rows: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> PackedTile:
    """The tile for a chunk of so many rows.

    For heads of 64, and of 128 where rows are many, it was measured in half precision on an H200. Few rows
    make enough programs only in small tiles, and where programs are few, long strides through the tokens are
    faster. In float32 there are no tensor cores to feed, and wide heads fill the registers; but Hopper's
    product, which takes 64 rows at a time, leaves one side in shared memory.
    """
    if dtype == torch.float32 or head_dim > 128:
        return PackedTile(16, 16, 4, 1)
    if head_dim > 64:
        return PackedTile(64 if num_rows >= 1024 and is_hopper(device) else 32, 32, 4, 2)
    if num_rows < 1024:
        return PackedTile(16 if num_rows < 512 else 32, 128, 4, 3)
    return PackedTile(64, 64, 4, 2)


def packed_attention_triton(
    query: Tensor,
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    rows: PackedRows,
    transform: HeadTransform | None = None,
    tile: PackedTile | None = None,
) -> Tensor:
    """Causal attention [T, H, D] of each row over its prompt's tokens, in one kernel: one program per tile of
    a prompt's queries and head of keys. Which rows those are it finds by itself, so a CUDA graph can hold it.
    The query may be a view.

    Takes what `packed_attention_plain` takes. tile: None picks `packed_tile`. Raises ValueError for arguments
    that do not fit, and TritonUnavailableError where no kernel runs.
    """
    check_packed(k_cache_layer, v_cache_layer, rows, transform, query=query)
    check_launchable(query.device)
    T, H, D = query.shape
    G = k_cache_layer.shape[1]
    group = H // G
    num_prompts = len(rows.context_lens)
    tile = tile or packed_tile(T * group, D, query.dtype, query.device)
    # Each prompt's last tile may be a part of one, and so may that of the pads.
    most_tiles = T * group // tile.rows + num_prompts + 1
    cos, sin, norm, _, eps = transform or NO_TRANSFORM
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    tensors = query, k_cache_layer, v_cache_layer, *rows, cos, sin, norm, out
    strides = *query.stride()[:2], *k_cache_layer.stride()[:3], rows.block_tables.stride(0), *out.stride()[:2]
    _packed_attention_kernel[(G, most_tiles)](
        *tensors,
        T,
        num_prompts,
        D**-0.5,
        eps,
        *strides,
        D,
        k_cache_layer.shape[2],
        GROUP=group,
        BLOCK_M=tile.rows,
        BLOCK_N=tile.tokens,
        BLOCK_P=triton.next_power_of_2(num_prompts + 1),
        BLOCK_D=max(16, triton.next_power_of_2(D)),  # the least that a product takes
        UPCAST=must_upcast(query.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **early_launch(query.device),
    )
    return out


@triton.jit(do_not_specialize=["T"])  # which changes from chunk to chunk
def _packed_attention_kernel(
    query_ptr, k_cache_ptr, v_cache_ptr, starts_ptr, context_lens_ptr, block_tables_ptr, cos_ptr, sin_ptr,
    norm_ptr, out_ptr,
    T, num_prompts, scale, eps,
    query_stride_t, query_stride_h, cache_stride_n, cache_stride_h, cache_stride_t, table_stride_p,
    out_stride_t, out_stride_h,
    D,
    block_size: tl.constexpr, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr, UPCAST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The tiles of the first prompt come first, and the pads' last, as if they were one more prompt. A
    program beyond them has nothing to do. A row has GROUP queries for a head of keys, one after another."""
    g = tl.program_id(0)
    tile = tl.program_id(1)
    m = tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    in_head = d < D
    p = tl.arange(0, BLOCK_P)
    begins = tl.load(starts_ptr + p, mask=p <= num_prompts, other=T)
    ends = tl.load(starts_ptr + 1 + p, mask=p < num_prompts, other=T)
    tile_ends = tl.cumsum(((ends - begins) * GROUP + BLOCK_M - 1) // BLOCK_M, axis=0)
    prompt = tl.sum((tile_ends <= tile).to(tl.int32), axis=0)
    if EARLY:  # whose rows these are was settled before the step's first kernel
        tl.extra.cuda.gdc_launch_dependents()
    if prompt <= num_prompts:
        is_own = p == prompt
        begin = tl.sum(tl.where(is_own, begins, 0), axis=0)
        num_rows = tl.sum(tl.where(is_own, ends - begins, 0), axis=0)
        # A prompt's last rows see the most tokens, so they are the first to begin.
        first_query = (tl.sum(tl.where(is_own, tile_ends, 0), axis=0) - 1 - tile) * BLOCK_M
        last_row = tl.minimum((first_query + BLOCK_M + GROUP - 1) // GROUP, num_rows)
        is_prompt = prompt < num_prompts
        num_before = tl.load(context_lens_ptr + prompt, mask=is_prompt, other=0)
        num_tokens = tl.where(is_prompt, num_before + last_row, 0)  # that the tile's last row sees
        own_row = (first_query + m) // GROUP
        h = g * GROUP + (first_query + m) % GROUP
        position = num_before + own_row
        table_ptr = block_tables_ptr + prompt.to(tl.int64) * table_stride_p
        row = (begin + own_row).to(tl.int64)
        in_tile = (own_row < num_rows)[:, None] & in_head[None, :]
        if EARLY:  # queries, and what is new in the cache, come from the kernels before
            tl.extra.cuda.gdc_wait()
        turn = tl.where(is_prompt & (own_row < num_rows), position, 0)  # some position, for pads
        cos, sin = load_turn(cos_ptr, sin_ptr, turn[:, None], d, D)
        queries = query_ptr + row[:, None] * query_stride_t + h[:, None] * query_stride_h
        query = load_heads(queries, in_tile, d, norm_ptr, eps, cos_ptr, cos, sin, D)
        if UPCAST:
            query = query.to(tl.float32)
        scale_2 = scale * 1.4426950408889634  # for a power of 2
        largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        # That all rows of the tile see, as far as they fill pieces: for those no score has to be masked.
        num_seen = num_before + first_query // GROUP + 1
        num_full = tl.minimum(num_seen, num_tokens) // BLOCK_N * BLOCK_N
        for LAST in tl.static_range(2):
            for start in range(num_full if LAST else 0, num_tokens if LAST else num_full, BLOCK_N):
                token = start + n
                live = token < num_tokens
                if block_size % BLOCK_N == 0:  # all in one block
                    block = tl.load(table_ptr + start // block_size)
                else:
                    block = tl.load(table_ptr + token // block_size, mask=live, other=0)
                # int64: in a large pool, block * stride passes 2^31
                head = block.to(tl.int64) * cache_stride_n + g * cache_stride_h
                pos = token % block_size
                place = (head + pos * cache_stride_t)[:, None] + d[None, :]
                mask = in_head[None, :]
                if LAST or BLOCK_D > 64:  # without it, wide heads take more registers than there are
                    mask = live[:, None] & mask
                keys = tl.load(k_cache_ptr + place, mask=mask, other=0.0)
                values = tl.load(v_cache_ptr + place, mask=mask, other=0.0)
                key_scales = load_scales(k_cache_ptr, head, pos, live, block_size, D)
                value_scales = load_scales(v_cache_ptr, head, pos, live, block_size, D)
                keys = dequantized(keys, key_scales[:, None], query_ptr.dtype.element_ty)
                values = dequantized(values, value_scales[:, None], query_ptr.dtype.element_ty)
                if UPCAST:
                    keys, values = keys.to(tl.float32), values.to(tl.float32)
                scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale_2
                if LAST:
                    scores = tl.where(token[None, :] <= position[:, None], scores, float("-inf"))
                new_largest = tl.maximum(largest, tl.max(scores, axis=1))  # each row sees token 0: no -inf
                weights = tl.exp2(scores - new_largest[:, None])
                correction = tl.exp2(largest - new_largest)
                total = total * correction + tl.sum(weights, axis=1)
                acc = acc * correction[:, None]
                acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")
                largest = new_largest
        total = tl.where(is_prompt, total, 1.0)  # a pad's zeros stay zeros
        out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
        place = row[:, None] * out_stride_t + h[:, None] * out_stride_h + d[None, :]
        tl.store(out_ptr + place, out, mask=in_tile)
