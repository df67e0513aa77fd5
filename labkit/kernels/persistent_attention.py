"""Attention in the kernel of `persistent_layers`.

A unit is a split of the tokens of a head, and a program has one or more. It stores the mean of the
unit's values and the logarithm of its softmax's sum; the next phase puts the splits together.
"""

# ruff: noqa: RUF005  # Triton's tuples grow by +

from labkit.kernels.eight_bit import dequantized, quantized, store_scales
from labkit.kernels.running_softmax import add_piece, load_blocks, load_tokens, put_together
from labkit.kernels.triton_runtime import tl, triton


@triton.jit
def attend(
    unit, piece, qkv_ptr, pools, layout, table_ptr, partials, context_len, scale,
    H: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Attention of one unit over its split of the tokens, of which `piece` is the first. The first split
    counts the current token, too, and stores its key and value."""
    h, split = unit // SPLITS, unit % SPLITS
    k_cache_ptr, v_cache_ptr = pools
    cache_stride_n, cache_stride_h, cache_stride_t, block_size, _, _ = layout
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
    total, acc = tl.zeros([BLOCK_T], tl.float32), tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    softmax = total + own_score, total, acc
    for start in range(split * BLOCK_T, context_len, SPLITS * BLOCK_T):
        softmax = add_piece(query, piece, start + t < context_len, softmax, k_cache_ptr.dtype.element_ty)
        following = start + SPLITS * BLOCK_T
        if following < context_len:
            blocks = load_blocks(layout, table_ptr, following, t)
            piece = load_tokens(pools, layout, blocks, following, following + t < context_len, h, t, d)
    is_first = split == 0
    all_largest, sum_total, sum_acc = put_together(softmax, own_score, value, is_first)
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
