"""Attention in the kernel of `persistent_layers`.

A unit is a split of the tokens of a head, and a program has one or more. It stores the mean of the
unit's values and the logarithm of its softmax's sum; the next phase puts the splits together.
"""

# ruff: noqa: RUF005  # Triton's tuples grow by +

from labkit.kernels.eight_bit import dequantized, load_scales, load_words, quantized, store_scales
from labkit.kernels.running_softmax import add_piece, put_together
from labkit.kernels.triton_runtime import tl, triton


@triton.jit
def load_blocks(table_ptr, start, table_size, block_size: tl.constexpr, BLOCK_T: tl.constexpr):
    """The blocks of the tokens from `start` on, some block's past the end of the table."""
    token = start + tl.arange(0, BLOCK_T)
    return tl.load(table_ptr + tl.minimum(token // block_size, table_size - 1))


@triton.jit
def load_piece(
    cache,
    blocks,
    start,
    context_len,
    h,
    D: tl.constexpr,
    block_size: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Keys and values of the tokens from `start` on, 0 past the end: [BLOCK_T, BLOCK_D] each, in 8 bits four
    in a word; and their scales, [BLOCK_T] each.

    cache: a layer's two pools, and the strides of a block, a head and a token.
    """
    k_cache_ptr, v_cache_ptr, cache_stride_n, cache_stride_h, cache_stride_t = cache
    token, d = start + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_D)
    live = token < context_len
    # int64: in a large pool, block * stride passes 2^31
    head = blocks.to(tl.int64) * cache_stride_n + h * cache_stride_h
    pos = token % block_size
    row = head + pos * cache_stride_t
    if k_cache_ptr.dtype.element_ty.primitive_bitwidth == 8:
        keys = load_words(k_cache_ptr, row, BLOCK_D, live, D)
        values = load_words(v_cache_ptr, row, BLOCK_D, live, D)
    else:
        place = row[:, None] + d[None, :]
        mask = live[:, None] & (d < D)[None, :]
        keys = tl.load(k_cache_ptr + place, mask=mask, other=0.0, eviction_policy="evict_first")
        values = tl.load(v_cache_ptr + place, mask=mask, other=0.0, eviction_policy="evict_first")
    key_scales = load_scales(k_cache_ptr, head, pos, live, block_size, D)
    value_scales = load_scales(v_cache_ptr, head, pos, live, block_size, D)
    return keys, values, key_scales, value_scales


@triton.jit
def attend(
    unit,
    piece,
    qkv_ptr,
    cache,
    table_ptr,
    table_size,
    partials,
    context_len,
    scale,
    H: tl.constexpr,
    D: tl.constexpr,
    block_size: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Attention of one unit over its split of the tokens, of which `piece` is the first. The first split
    counts the current token, too, and stores its key and value."""
    h, split = unit // SPLITS, unit % SPLITS
    keys, values, key_scales, value_scales = piece
    k_cache_ptr, v_cache_ptr, cache_stride_n, cache_stride_h, cache_stride_t = cache
    partial_ptr, log_sums_ptr = partials
    E: tl.constexpr = H * D
    t, d = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_D)
    in_head = d < D
    own_block = tl.load(table_ptr + tl.maximum(context_len, 0) // block_size).to(tl.int64)
    new = qkv_ptr + h * D + d
    query = tl.load(new, mask=in_head, other=0.0).to(tl.float32) * scale
    key = tl.load(new + E, mask=in_head, other=0.0)
    value = tl.load(new + 2 * E, mask=in_head, other=0.0)
    kept_key, key_scale = quantized(key, k_cache_ptr)
    kept_value, value_scale = quantized(value, v_cache_ptr)
    # The token sees itself as all later ones will.
    key = dequantized(kept_key, key_scale, tl.float32)
    value = dequantized(kept_value, value_scale, tl.float32)
    own_score = tl.sum(query * key.to(tl.float32), axis=0)
    # Each of the BLOCK_T places has a softmax of its own; they are put together once, after the loop.
    largest = tl.zeros([BLOCK_T], tl.float32) + own_score
    total = tl.zeros([BLOCK_T], tl.float32)
    acc = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    for start in range(split * BLOCK_T, context_len, SPLITS * BLOCK_T):
        live = start + t < context_len
        largest, total, acc = add_piece(
            query, keys, values, live, largest, total, acc,
            key_scales, value_scales, k_cache_ptr.dtype.element_ty,
        )  # fmt: skip
        following = start + SPLITS * BLOCK_T
        if following < context_len:
            blocks = load_blocks(table_ptr, following, table_size, block_size, BLOCK_T)
            keys, values, key_scales, value_scales = load_piece(
                cache, blocks, following, context_len, h, D, block_size, BLOCK_T, BLOCK_D
            )
    is_first = split == 0
    all_largest, sum_total, sum_acc = put_together(largest, total, acc, own_score, value, is_first)
    is_empty = sum_total == 0.0  # a split beyond the tokens
    sum_total = tl.where(is_empty, 1.0, sum_total)
    log_sum = tl.where(is_empty, float("-inf"), all_largest + tl.log(sum_total))
    tl.store(log_sums_ptr + split * H + h, log_sum)
    mean = (sum_acc / sum_total).to(partial_ptr.dtype.element_ty)
    tl.store(partial_ptr + split * E + h * D + d, mean, mask=in_head)
    if is_first & (context_len >= 0):
        head, pos = own_block * cache_stride_n + h * cache_stride_h, context_len % block_size
        token = head + pos * cache_stride_t + d
        tl.store(k_cache_ptr + token, kept_key, mask=in_head)
        tl.store(v_cache_ptr + token, kept_value, mask=in_head)
        store_scales(k_cache_ptr, head, pos, key_scale, None, block_size, D)
        store_scales(v_cache_ptr, head, pos, value_scale, None, block_size, D)


@triton.jit
def load_attended(
    partials,
    H: tl.constexpr,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The row of attention, put together from its splits, as `load_row` gives one."""
    E: tl.constexpr = H * D
    CHUNKS: tl.constexpr = (E + BLOCK_K - 1) // BLOCK_K
    partial_ptr, log_sums_ptr = partials
    k = tl.arange(0, BLOCK_K)
    log_sums, parts = (), ()
    for c in tl.static_range(CHUNKS):  # all asked for at once
        column = c * BLOCK_K + k
        for s in tl.static_range(SPLITS):
            log_sum = log_sums_ptr + s * H + column // D
            log_sums = log_sums + (tl.load(log_sum, mask=column < E, other=0.0),)
            parts = parts + (tl.load(partial_ptr + s * E + column, mask=column < E, other=0.0),)
    row = ()
    for c in tl.static_range(CHUNKS):
        largest = log_sums[c * SPLITS]
        for s in tl.static_range(1, SPLITS):
            largest = tl.maximum(largest, log_sums[c * SPLITS + s])
        total, acc = tl.zeros_like(largest), tl.zeros_like(largest)
        for s in tl.static_range(SPLITS):
            weight = tl.exp(log_sums[c * SPLITS + s] - largest)
            total += weight
            acc += weight * parts[c * SPLITS + s]
        row = row + (tl.broadcast_to((acc / total)[None, :], [BLOCK_N, BLOCK_K]),)
    return row
