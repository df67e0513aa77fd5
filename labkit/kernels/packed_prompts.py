"""Prompts that lie behind each other without pads: whose the rows are, and their keys and values into the
paged cache.

T rows of a chunk, each a token of one of P prompts, G heads of keys and values, D head size, N blocks in the
pool, M blocks per row of the block table. A prompt may have tokens in the cache already: those of its earlier
chunks, or of a cached prefix. `packed_attention` attends over them.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from labkit.kernels.checks import check_range, check_rising, check_tensor
from labkit.kernels.eight_bit import check_caches, quantized, store_scales, write_heads
from labkit.kernels.head_transform import (
    NO_TRANSFORM,
    HeadTransform,
    check_transform,
    load_heads,
    load_turn,
    transform_heads_plain,
)
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

    @property
    def last(self) -> "PackedRows":
        """Each prompt's last row by itself, behind all of the others. A prompt that has no row here has one
        there, the first of block 0, because its table may be anything: nothing is to be read of it."""
        counts = self.starts.diff()
        starts = torch.arange(len(self.starts), dtype=torch.int32, device=self.starts.device)
        num_before = (self.context_lens + counts - 1).masked_fill(counts == 0, 0)
        return PackedRows(starts, num_before, self.block_tables.masked_fill(counts[:, None] == 0, 0))

    def prompts(self) -> list[tuple[int, slice, int]]:
        """The prompts that have rows: their place, their rows, and their tokens before (the host waits)."""
        bounds, lens = self.starts.tolist(), self.context_lens.tolist()
        each = zip(bounds, bounds[1:], lens, strict=False)
        return [(p, slice(a, b), n) for p, (a, b, n) in enumerate(each) if a < b]

    def positions(self, num_rows: int) -> Tensor:
        """The place [num_rows] of each row's token in its prompt; 0 for pads (the host waits)."""
        positions = torch.zeros(num_rows, dtype=torch.int64, device=self.starts.device)
        for _, own, num_before in self.prompts():
            positions[own] = torch.arange(
                num_before, num_before + own.stop - own.start, device=positions.device
            )
        return positions


# --- keys and values into the cache --------------------------------------------------------------------


def kv_append_packed_plain(
    k_cache_layer: Tensor,  # [N, G, block_size, D]
    v_cache_layer: Tensor,
    key: Tensor,  # [T, G, D]
    value: Tensor,
    rows: PackedRows,
    transform: HeadTransform | None = None,
) -> None:
    """Store the keys and values of a chunk's rows behind those that their prompts have in the cache.
    transform: of the keys, before they are stored.

    Plain PyTorch: the oracle of `kv_append_packed_triton`. Raises ValueError for arguments that do not fit.
    """
    check_packed(k_cache_layer, v_cache_layer, rows, transform, key=key, value=value)
    if transform is not None:
        key = transform_heads_plain(key, rows.positions(len(key)), transform.key_norm, transform)
    block_size = k_cache_layer.shape[2]
    for p, own, num_before in rows.prompts():
        positions = torch.arange(num_before, num_before + own.stop - own.start, device=key.device)
        block_idx, pos = rows.block_tables[p, positions // block_size].long(), positions % block_size
        write_heads(k_cache_layer, (block_idx, slice(None), pos), key[own])
        write_heads(v_cache_layer, (block_idx, slice(None), pos), value[own])


def kv_append_packed_triton(
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    key: Tensor,
    value: Tensor,
    rows: PackedRows,
    transform: HeadTransform | None = None,
) -> None:
    """Store the keys and values of a chunk's rows in one kernel, which finds each row's prompt by itself: the
    host knows the sizes alone, so a CUDA graph can hold it. Key and value may be views.

    Takes and raises what `kv_append_packed_plain` does, and TritonUnavailableError where no kernel runs.
    """
    check_packed(k_cache_layer, v_cache_layer, rows, transform, key=key, value=value)
    check_launchable(key.device)
    T, G, D = key.shape
    num_prompts = len(rows.context_lens)
    cos, sin, _, norm, eps = transform or NO_TRANSFORM
    tensors = k_cache_layer, v_cache_layer, key, value, *rows, cos, sin, norm
    strides = *k_cache_layer.stride()[:3], *key.stride()[:2], *value.stride()[:2]
    _kv_append_packed_kernel[(G, triton.cdiv(T, ROWS_PER_STORE))](
        *tensors,
        eps,
        num_prompts,
        *strides,
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
    k_cache_ptr, v_cache_ptr, key_ptr, value_ptr, starts_ptr, context_lens_ptr, block_tables_ptr, cos_ptr,
    sin_ptr, norm_ptr,
    eps, num_prompts,
    cache_stride_n, cache_stride_h, cache_stride_t, key_stride_t, key_stride_h, value_stride_t,
    value_stride_h, table_stride_p,
    D, block_size,
    ROWS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
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
    cos, sin = load_turn(cos_ptr, sin_ptr, tl.where(written, position, 0)[:, None], d, D)
    keys = key_ptr + own * key_stride_t + h * key_stride_h
    key = load_heads(keys, mask, d, norm_ptr, eps, cos_ptr, cos, sin, D)
    values = value_ptr + own * value_stride_t + h * value_stride_h + d[None, :]
    value = tl.load(values, mask=mask, other=0.0)
    head = block * cache_stride_n + h * cache_stride_h
    pos = position % block_size
    place = (head + pos * cache_stride_t)[:, None] + d[None, :]
    key, key_scales = quantized(key, k_cache_ptr)
    value, value_scales = quantized(value, v_cache_ptr)
    tl.store(k_cache_ptr + place, key, mask=mask)
    tl.store(v_cache_ptr + place, value, mask=mask)
    heads, place, mask = head[:, None], pos[:, None], written[:, None]
    store_scales(k_cache_ptr, heads, place, key_scales, mask, block_size, D)
    store_scales(v_cache_ptr, heads, place, value_scales, mask, block_size, D)


# --- contract -------------------------------------------------------------------------------------------


def check_packed(
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    rows: PackedRows,
    transform: HeadTransform | None = None,
    **of_rows: Tensor,
) -> None:
    """Raises ValueError naming the first argument whose shape, stride, dtype or device does not fit.

    of_rows: by name, the query [T, H, D], or key and value [T, G, D]. With LABKIT_DEBUG=1 the values
    in `rows` are checked, too, for which the host waits for the GPU.
    """
    (name, first), *_ = of_rows.items()
    check_tensor(name, first, shape=("T", "H", "D"), last_stride_is_1=True)
    T, H, D = first.shape
    like_first = {"dtype": first.dtype, "device": first.device, "last_stride_is_1": True}
    for name, tensor in of_rows.items():
        check_tensor(name, tensor, shape=(T, H, D), **like_first)
    num_heads = "G" if name == "query" else H
    check_caches(k_cache_layer, v_cache_layer, num_heads, first, takes_eight_bit=True)
    if not (G := k_cache_layer.shape[1]) or H % G:
        raise ValueError(f"k_cache_layer has {G} heads, of which the {H} of query are no multiple")
    integers = {"dtype": torch.int32, "device": first.device, "last_stride_is_1": True}
    check_tensor("rows.block_tables", rows.block_tables, shape=("P", "M"), **integers)
    num_prompts = len(rows.block_tables)
    check_tensor("rows.starts", rows.starts, shape=(num_prompts + 1,), **integers)
    check_tensor("rows.context_lens", rows.context_lens, shape=(num_prompts,), **integers)
    room = rows.block_tables.shape[1] * k_cache_layer.shape[2]
    check_range("rows.starts", rows.starts, T + 1)
    check_rising("rows.starts", rows.starts)
    check_range("rows.context_lens", rows.context_lens, room + 1)
    if transform is not None:
        check_transform(transform, first)
