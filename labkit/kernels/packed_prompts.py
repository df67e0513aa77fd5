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

from labkit.kernels.checks import check_range, check_tensor
from labkit.kernels.fused_linear import must_upcast
from labkit.kernels.triton_runtime import check_launchable, early_launch, tl, triton

ROWS_PER_STORE = 32  # of one head, that a program stores


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


# --- keys and values into the cache --------------------------------------------------------------------


def kv_append_packed_plain(
    k_cache_layer: Tensor,  # [N, H, block_size, D]
    v_cache_layer: Tensor,
    key: Tensor,  # [T, H, D]
    value: Tensor,
    rows: PackedRows,
) -> None:
    """Store the keys and values of a chunk's rows behind those that their prompts have in the cache.

    Plain PyTorch: the oracle of `kv_append_packed_triton`. Raises ValueError for arguments that do not fit.
    """
    check_packed(k_cache_layer, v_cache_layer, rows, key=key, value=value)
    block_size = k_cache_layer.shape[2]
    for p, own, num_before in rows.prompts():
        positions = torch.arange(num_before, num_before + own.stop - own.start, device=key.device)
        block_idx, pos = rows.block_tables[p, positions // block_size].long(), positions % block_size
        k_cache_layer[block_idx, :, pos] = key[own]
        v_cache_layer[block_idx, :, pos] = value[own]


def kv_append_packed_triton(
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    key: Tensor,
    value: Tensor,
    rows: PackedRows,
) -> None:
    """Store the keys and values of a chunk's rows in one kernel, which finds each row's prompt by itself: the
    host knows the sizes alone, so a CUDA graph can hold it. Key and value may be views.

    Takes what `kv_append_packed_plain` takes. Raises ValueError for arguments that do not fit, and
    TritonUnavailableError where no kernel runs.
    """
    check_packed(k_cache_layer, v_cache_layer, rows, key=key, value=value)
    check_launchable(key.device)
    T, H, D = key.shape
    num_prompts = len(rows.context_lens)
    _kv_append_packed_kernel[(H, triton.cdiv(T, ROWS_PER_STORE))](
        k_cache_layer,
        v_cache_layer,
        key,
        value,
        *rows,
        num_prompts,
        *k_cache_layer.stride()[:3],
        *key.stride()[:2],
        *value.stride()[:2],
        rows.block_tables.stride(0),
        D,
        k_cache_layer.shape[2],
        ROWS=ROWS_PER_STORE,
        BLOCK_P=triton.next_power_of_2(num_prompts),
        BLOCK_D=triton.next_power_of_2(D),
        num_warps=4,
        **early_launch(key.device),
    )


@triton.jit
def _kv_append_packed_kernel(
    k_cache_ptr,
    v_cache_ptr,
    key_ptr,
    value_ptr,
    starts_ptr,
    context_lens_ptr,
    block_tables_ptr,
    num_prompts,
    cache_stride_n,
    cache_stride_h,
    cache_stride_t,
    key_stride_t,
    key_stride_h,
    value_stride_t,
    value_stride_h,
    table_stride_p,
    D,
    block_size,
    ROWS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A program has ROWS rows of one head."""
    h = tl.program_id(0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    p = tl.arange(0, BLOCK_P)
    d = tl.arange(0, BLOCK_D)
    ends = tl.load(starts_ptr + 1 + p, mask=p < num_prompts, other=2147483647)
    prompt = tl.sum((ends[None, :] <= row[:, None]).to(tl.int32), axis=1)  # those before it have ended
    written = prompt < num_prompts  # a pad comes behind all; so does a row past the last
    first = tl.load(starts_ptr + prompt, mask=written, other=0)
    position = tl.load(context_lens_ptr + prompt, mask=written, other=0) + row - first
    entry = block_tables_ptr + prompt.to(tl.int64) * table_stride_p + position // block_size
    # int64: in a large pool, block * stride passes 2^31
    block = tl.load(entry, mask=written, other=0).to(tl.int64)
    if EARLY:  # whose rows these are was settled before the step's first kernel
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    mask = written[:, None] & (d < D)[None, :]
    own = row.to(tl.int64)[:, None]
    key = tl.load(key_ptr + own * key_stride_t + h * key_stride_h + d[None, :], mask=mask)
    value = tl.load(value_ptr + own * value_stride_t + h * value_stride_h + d[None, :], mask=mask)
    place = block * cache_stride_n + h * cache_stride_h + (position % block_size) * cache_stride_t
    tl.store(k_cache_ptr + place[:, None] + d[None, :], key, mask=mask)
    tl.store(v_cache_ptr + place[:, None] + d[None, :], value, mask=mask)


# --- attention ------------------------------------------------------------------------------------------


def packed_attention_plain(
    query: Tensor,  # [T, H, D]
    k_cache_layer: Tensor,  # [N, H, block_size, D]
    v_cache_layer: Tensor,
    rows: PackedRows,
) -> Tensor:
    """Causal attention [T, H, D] of each row over its prompt's tokens up to its own, which are all in the
    cache; zeros for pads.

    Plain PyTorch: the oracle of `packed_attention_triton`. Raises ValueError for arguments that do not fit.
    """
    check_packed(k_cache_layer, v_cache_layer, rows, query=query)
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


class PackedTile(NamedTuple):
    """What a program of packed attention has at a time, and how it is compiled."""

    rows: int
    tokens: int
    num_warps: int
    num_stages: int


def packed_tile(num_rows: int, head_dim: int, dtype: torch.dtype) -> PackedTile:
    """The tile for a chunk of so many rows.

    For heads of 64 in half precision it was measured on an H200. Few rows make enough programs only in small
    tiles, and where programs are few, long strides through the tokens are faster. In float32 there are no
    tensor cores to feed, and wide heads fill the registers.
    """
    if dtype == torch.float32 or head_dim > 128:
        return PackedTile(16, 16, 4, 1)
    if head_dim > 64:
        return PackedTile(32, 32, 4, 2)
    if num_rows < 1024:
        return PackedTile(16 if num_rows < 512 else 32, 128, 4, 3)
    return PackedTile(64, 64, 4, 2)


def packed_attention_triton(
    query: Tensor,
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    rows: PackedRows,
    tile: PackedTile | None = None,
) -> Tensor:
    """Causal attention [T, H, D] of each row over its prompt's tokens, in one kernel: one program per tile of
    a prompt's rows and head. Which rows those are it finds by itself, so a CUDA graph can hold it. The query
    may be a view.

    Takes what `packed_attention_plain` takes. tile: None picks `packed_tile`. Raises ValueError for arguments
    that do not fit, and TritonUnavailableError where no kernel runs.
    """
    check_packed(k_cache_layer, v_cache_layer, rows, query=query)
    check_launchable(query.device)
    T, H, D = query.shape
    num_prompts = len(rows.context_lens)
    tile = tile or packed_tile(T, D, query.dtype)
    # Each prompt's last tile may be a part of one, and so may that of the pads.
    most_tiles = T // tile.rows + num_prompts + 1
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    _packed_attention_kernel[(H, most_tiles)](
        query,
        k_cache_layer,
        v_cache_layer,
        *rows,
        out,
        T,
        num_prompts,
        D**-0.5,
        *query.stride()[:2],
        *k_cache_layer.stride()[:3],
        rows.block_tables.stride(0),
        *out.stride()[:2],
        D,
        k_cache_layer.shape[2],
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


@triton.jit
def _packed_attention_kernel(
    query_ptr,
    k_cache_ptr,
    v_cache_ptr,
    starts_ptr,
    context_lens_ptr,
    block_tables_ptr,
    out_ptr,
    T,
    num_prompts,
    scale,
    query_stride_t,
    query_stride_h,
    cache_stride_n,
    cache_stride_h,
    cache_stride_t,
    table_stride_p,
    out_stride_t,
    out_stride_h,
    D,
    block_size: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_D: tl.constexpr,
    UPCAST: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The tiles of the first prompt come first, and the pads' last, as if they were one more prompt. A
    program beyond them has nothing to do."""
    h = tl.program_id(0)
    tile = tl.program_id(1)
    m = tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    in_head = d < D
    p = tl.arange(0, BLOCK_P)
    begins = tl.load(starts_ptr + p, mask=p <= num_prompts, other=T)
    ends = tl.load(starts_ptr + 1 + p, mask=p < num_prompts, other=T)
    tile_ends = tl.cumsum((ends - begins + BLOCK_M - 1) // BLOCK_M, axis=0)
    prompt = tl.sum((tile_ends <= tile).to(tl.int32), axis=0)
    if EARLY:  # whose rows these are was settled before the step's first kernel
        tl.extra.cuda.gdc_launch_dependents()
    if prompt <= num_prompts:
        is_own = p == prompt
        begin = tl.sum(tl.where(is_own, begins, 0), axis=0)
        num_rows = tl.sum(tl.where(is_own, ends - begins, 0), axis=0)
        # A prompt's last rows see the most tokens, so they are the first to begin.
        first_row = (tl.sum(tl.where(is_own, tile_ends, 0), axis=0) - 1 - tile) * BLOCK_M
        last_row = tl.minimum(first_row + BLOCK_M, num_rows)
        is_prompt = prompt < num_prompts
        num_before = tl.load(context_lens_ptr + prompt, mask=is_prompt, other=0)
        num_tokens = tl.where(is_prompt, num_before + last_row, 0)  # that the tile's last row sees
        position = num_before + first_row + m
        table_ptr = block_tables_ptr + prompt.to(tl.int64) * table_stride_p
        row = (begin + first_row + m).to(tl.int64)
        in_tile = (first_row + m < num_rows)[:, None] & in_head[None, :]
        if EARLY:  # queries, and what is new in the cache, come from the kernels before
            tl.extra.cuda.gdc_wait()
        query = tl.load(
            query_ptr + row[:, None] * query_stride_t + h * query_stride_h + d[None, :],
            mask=in_tile,
            other=0.0,
        )
        if UPCAST:
            query = query.to(tl.float32)
        scale_2 = scale * 1.4426950408889634  # for a power of 2
        largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        for start in range(0, num_tokens, BLOCK_N):
            token = start + n
            live = token < num_tokens
            # int64: in a large pool, block * stride passes 2^31
            block = tl.load(table_ptr + token // block_size, mask=live, other=0).to(tl.int64)
            place = block * cache_stride_n + h * cache_stride_h + (token % block_size) * cache_stride_t
            place = place[:, None] + d[None, :]
            mask = live[:, None] & in_head[None, :]
            keys = tl.load(k_cache_ptr + place, mask=mask, other=0.0)
            values = tl.load(v_cache_ptr + place, mask=mask, other=0.0)
            if UPCAST:
                keys, values = keys.to(tl.float32), values.to(tl.float32)
            scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale_2
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
        tl.store(out_ptr + row[:, None] * out_stride_t + h * out_stride_h + d[None, :], out, mask=in_tile)


# --- contract -------------------------------------------------------------------------------------------


def check_packed(k_cache_layer: Tensor, v_cache_layer: Tensor, rows: PackedRows, **of_rows: Tensor) -> None:
    """Raises ValueError naming the first argument whose shape, stride, dtype or device does not fit.

    of_rows: by name, tensors [T, H, D] with a row for each of the chunk's. With LABKIT_DEBUG=1 the values
    in `rows` are checked, too, for which the host waits for the GPU.
    """
    (name, first), *_ = of_rows.items()
    check_tensor(name, first, shape=("T", "H", "D"), last_stride_is_1=True)
    T, H, D = first.shape
    like_first = {"dtype": first.dtype, "device": first.device, "last_stride_is_1": True}
    for name, tensor in of_rows.items():
        check_tensor(name, tensor, shape=(T, H, D), **like_first)
    check_tensor("k_cache_layer", k_cache_layer, shape=("N", H, "block_size", D), **like_first)
    check_tensor("v_cache_layer", v_cache_layer, shape=tuple(k_cache_layer.shape), **like_first)
    if v_cache_layer.stride() != k_cache_layer.stride():
        raise ValueError(
            f"v_cache_layer has strides {v_cache_layer.stride()}, k_cache_layer {k_cache_layer.stride()}"
        )
    integers = {"dtype": torch.int32, "device": first.device, "last_stride_is_1": True}
    check_tensor("rows.block_tables", rows.block_tables, shape=("P", "M"), **integers)
    num_prompts = len(rows.block_tables)
    check_tensor("rows.starts", rows.starts, shape=(num_prompts + 1,), **integers)
    check_tensor("rows.context_lens", rows.context_lens, shape=(num_prompts,), **integers)
    room = rows.block_tables.shape[1] * k_cache_layer.shape[2]
    check_range("rows.starts", rows.starts, T + 1)
    check_range("the numbers of rows in rows.starts", rows.starts.diff(), T + 1)
    check_range("rows.context_lens", rows.context_lens, room + 1)
