"""Tokens that come piece by piece, and the softmax over them: what kernels of attention share.

T places of a tile, D head size, P parts. Each place has a softmax of its own (Milakov and Gimelshein, 2018),
so that no thread waits for another in a program's loop: its largest score so far [T], the total of its
weights [T], each the exponential of a score less the largest, and the values by these weights [T, D].
"""

from labkit.kernels.eight_bit import load_scales, load_words, unpacked
from labkit.kernels.triton_runtime import tl, triton


@triton.jit
def load_blocks(layout, table_ptr, start, t):
    """The blocks of the tokens from `start` on. Past the end of the tokens there is some block's id, too:
    reading it costs nothing, and the table need not wait for the context length.

    layout: a cache's strides from block to block, head to head and token to token, the tokens of a block, the
    numbers of a head, and the blocks that a row of the table has room for.
    """
    _, _, _, block_size, _, table_size = layout
    return tl.load(table_ptr + tl.minimum((start + t) // block_size, table_size - 1))


@triton.jit
def load_piece(pools, layout, table_ptr, start, end, h, t, d):
    """Keys and values of the tokens from `start` on, 0 past the end: [T, D] each, in 8 bits four in a word;
    and their scales, [T] each. pools: a layer's keys and its values; layout: as of `load_blocks`."""
    live = start + t < end
    return load_tokens(pools, layout, load_blocks(layout, table_ptr, start, t), start, live, h, t, d)


@triton.jit
def load_tokens(pools, layout, blocks, start, live, h, t, d):
    """What `load_piece` loads, of tokens whose blocks are known. live: [T], which of them there are."""
    k_cache_ptr, v_cache_ptr = pools
    cache_stride_n, cache_stride_h, cache_stride_t, block_size, D, _ = layout
    # int64: in a large pool, block * stride passes 2^31
    head = blocks.to(tl.int64) * cache_stride_n + h * cache_stride_h
    pos = (start + t) % block_size
    row = head + pos * cache_stride_t
    # Read once per step: they make room in the cache for what is read again.
    if k_cache_ptr.dtype.element_ty.primitive_bitwidth == 8:
        keys = load_words(k_cache_ptr, row, d.shape[0], live, D)
        values = load_words(v_cache_ptr, row, d.shape[0], live, D)
    else:
        place = row[:, None] + d[None, :]
        mask = live[:, None] & (d < D)[None, :]
        keys = tl.load(k_cache_ptr + place, mask=mask, other=0.0, eviction_policy="evict_first")
        values = tl.load(v_cache_ptr + place, mask=mask, other=0.0, eviction_policy="evict_first")
    key_scales = load_scales(k_cache_ptr, head, pos, live, block_size, D)
    value_scales = load_scales(v_cache_ptr, head, pos, live, block_size, D)
    return keys, values, key_scales, value_scales


@triton.jit
def add_piece(query, piece, live, softmax, kept: tl.constexpr):
    """The softmax of each place with one token more, where there is one.

    query: [D], scaled. piece: from `load_piece`, of a cache whose values are `kept` so. live: [T], whether
    the place has a token. softmax: largest score, total and values.
    """
    keys, values, key_scales, value_scales = piece
    largest, total, acc = softmax
    if kept.primitive_bitwidth == 8:
        keys, values = unpacked(keys, kept, tl.float16), unpacked(values, kept, tl.float16)
    scores = tl.sum(query[None, :] * keys.to(tl.float32), axis=1)
    if kept.primitive_bitwidth == 8:
        scores *= key_scales
    scores = tl.where(live, scores, float("-inf"))
    new_largest = tl.maximum(largest, scores)
    correction = tl.exp(largest - new_largest)
    weights = tl.exp(scores - new_largest)
    total = total * correction + weights
    if kept.primitive_bitwidth == 8:
        weights *= value_scales  # behind `total`, which has no scales in it
    acc = acc * correction[:, None] + weights[:, None] * values.to(tl.float32)
    return new_largest, total, acc


@triton.jit
def add_group_piece(query, piece, live, softmax, scale, kept: tl.constexpr, UPCAST: tl.constexpr):
    """The softmax of each query with a piece of tokens more.

    query: [G, D], a group's. piece, kept: as of `add_piece`. live: [T], whether there is such a token.
    softmax: of each query its largest score [G], its total [G] and its values [G, D].
    """
    keys, values, key_scales, value_scales = piece
    largest, total, acc = softmax
    is_scaled: tl.constexpr = kept.primitive_bitwidth == 8
    if is_scaled:
        keys, values = unpacked(keys, kept, query.dtype), unpacked(values, kept, query.dtype)
    if UPCAST:
        keys, values = keys.to(tl.float32), values.to(tl.float32)
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    if is_scaled:
        scores *= key_scales[None, :]
    scores = tl.where(live[None, :], scores, float("-inf"))
    new_largest = tl.maximum(largest, tl.max(scores, axis=1))
    correction = tl.exp(largest - new_largest)
    weights = tl.exp(scores - new_largest[:, None])
    total = total * correction + tl.sum(weights, axis=1)
    if is_scaled:  # by the largest, so that small scales are no small numbers of 16 bits
        unit = tl.max(value_scales, axis=0)
        unit = tl.maximum(unit, 1.1754943508222875e-38)  # LEAST_SCALE, if no token is live
        weights *= (value_scales / unit)[None, :]
        sums = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        acc = acc * correction[:, None] + sums * unit
    else:
        acc = tl.dot(weights.to(values.dtype), values, acc * correction[:, None], input_precision="ieee")
    return new_largest, total, acc


@triton.jit
def put_together(softmax, own_score, value, has_own):
    """Largest score, total and values [D] of all places, and of the current token if the program has it.

    own_score, value: the current token's, at whose score all places began.
    """
    largest, total, acc = softmax
    all_largest = tl.max(largest, axis=0)
    weights = tl.exp(largest - all_largest)
    own_weight = tl.exp(own_score - all_largest) * has_own.to(tl.float32)  # counted by one program alone
    sum_total = tl.sum(total * weights, axis=0) + own_weight
    sum_acc = tl.sum(acc * weights[:, None], axis=0) + own_weight * value.to(tl.float32)
    return all_largest, sum_total, sum_acc


@triton.jit
def merge_parts(parts, is_part, partial_out_ptr, partial_softmax_ptr, d, in_head, D):
    """Attention [D] of all tokens, from what the programs of the parts left: values, largest score and total.

    `.cg`: another multiprocessor wrote them, so they are read past this one's own cache.
    """
    largest = tl.load(
        partial_softmax_ptr + parts * 2, mask=is_part, other=float("-inf"), cache_modifier=".cg"
    )
    total = tl.load(partial_softmax_ptr + parts * 2 + 1, mask=is_part, other=0.0, cache_modifier=".cg")
    acc = tl.load(
        partial_out_ptr + parts[:, None] * D + d[None, :],
        mask=is_part[:, None] & in_head[None, :],
        other=0.0,
        cache_modifier=".cg",
    )
    weights = tl.exp(largest - tl.max(largest, axis=0))
    return tl.sum(weights[:, None] * acc, axis=0) / tl.sum(weights * total, axis=0)


@triton.jit
def merge_group(first_place, num_parts, H, is_query, partials, d, in_group, D, PARTS_AT_ONCE: tl.constexpr):
    """Attention [G, D] of all tokens, from what the programs of num_parts parts left for each query of a
    group: of the first part at first_place [G], each other one H further on.

    PARTS_AT_ONCE are on their way at the same time, because a program that has them come one after another
    waits for each. `.cg`: another multiprocessor wrote them, so they are read past this one's own cache.
    """
    partial_out_ptr, partial_softmax_ptr = partials
    largest = tl.where(is_query, float("-inf"), 0.0)
    total = tl.where(is_query, 0.0, 1.0)
    acc = tl.zeros([in_group.shape[0], in_group.shape[1]], tl.float32)
    for part in range(0, num_parts, PARTS_AT_ONCE):
        for i in tl.static_range(PARTS_AT_ONCE):
            is_part = is_query & (part + i < num_parts)
            place = first_place + tl.minimum(part + i, num_parts - 1) * H  # no more than there are
            own = partial_softmax_ptr + place * 2
            part_largest = tl.load(own, mask=is_part, other=float("-inf"), cache_modifier=".cg")
            part_total = tl.load(own + 1, mask=is_query, other=0.0, cache_modifier=".cg")
            values = partial_out_ptr + place[:, None] * D + d[None, :]
            part_acc = tl.load(values, mask=in_group, other=0.0, cache_modifier=".cg")
            new_largest = tl.maximum(largest, part_largest)
            correction = tl.exp(largest - new_largest)
            weight = tl.exp(part_largest - new_largest)
            total = total * correction + weight * part_total
            acc = acc * correction[:, None] + weight[:, None] * part_acc
            largest = new_largest
    return acc / total[:, None]
