"""Parts of the kernel in `persistent_layers`: its barrier, its products and its attention.

A program has a share of a product's outputs: `first` to `end`, in tiles of BLOCK_N. It holds their weights
in registers, as a tuple of [BLOCK_N, BLOCK_K] tensors, chunk by chunk: a warp has whole rows of them, so that
no sum crosses warps.
"""

# ruff: noqa: RUF005  # Triton's tuples grow by +

from labkit.kernels.eight_bit import dequantized, quantized, store_scales
from labkit.kernels.running_softmax import add_piece, load_blocks, load_tokens, put_together
from labkit.kernels.triton_runtime import tl, triton

# --- the barrier ----------------------------------------------------------------------------------------


@triton.jit
def arrive(barrier_ptr):
    """Say that this program has stored all that others wait for."""
    tl.debug_barrier()  # every thread has stored before one of them counts the program as arrived
    tl.atomic_add(barrier_ptr, 1, sem="release", scope="gpu")


@triton.jit
def wait(barrier_ptr, target):
    """Wait until `target` arrivals were counted; after it, plain loads see what those programs stored."""
    while tl.atomic_add(barrier_ptr, 0, sem="acquire", scope="gpu") < target:
        pass
    tl.debug_barrier()


@triton.jit
def leave(barrier_ptr, target):
    """Arrive for the last time: the last of `target` arrivals sets the count to 0 for the next launch."""
    tl.debug_barrier()
    if tl.atomic_add(barrier_ptr, 1, sem="acq_rel", scope="gpu") == target - 1:
        tl.store(barrier_ptr, 0)


# --- weights --------------------------------------------------------------------------------------------


@triton.jit
def weights_at(table_ptr, place, like_ptr):
    """The tensor whose address is at `place` of the table, of numbers as like_ptr's."""
    return tl.multiple_of(tl.load(table_ptr + place).to(like_ptr.dtype), 16)


@triton.jit
def load_weights(
    weight_ptr,
    first,
    end,
    K: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """A program's share of a weight [N, K]: TILES tiles, each as many tensors [BLOCK_N, BLOCK_K] as K has
    chunks."""
    n, k = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    share = ()
    for i in tl.static_range(TILES):
        row = first + i * BLOCK_N + n
        for c in tl.static_range((K + BLOCK_K - 1) // BLOCK_K):
            column = c * BLOCK_K + k
            mask = (row < end)[:, None] & (column < K)[None, :]
            place = weight_ptr + row[:, None] * K + column[None, :]
            # Read once per step: they make room in the cache for what is read again.
            share = share + (tl.load(place, mask=mask, other=0.0, eviction_policy="evict_first"),)
    return share


@triton.jit
def load_vector(vector_ptr, first, end, TILES: tl.constexpr, BLOCK_N: tl.constexpr):
    """A program's share of a vector [N], float32: TILES tensors [BLOCK_N]."""
    share = ()
    for i in tl.static_range(TILES):
        n = first + i * BLOCK_N + tl.arange(0, BLOCK_N)
        share = share + (tl.load(vector_ptr + n, mask=n < end, other=0.0).to(tl.float32),)
    return share


@triton.jit
def norm_linear_at(table_ptr, place: tl.constexpr, like_ptr, float32_ptr):
    """The addresses of a NormLinear: of its weight, column sums and bias."""
    weight_ptr = weights_at(table_ptr, place, like_ptr)
    return (
        weight_ptr,
        weights_at(table_ptr, place + 1, float32_ptr),
        weights_at(table_ptr, place + 2, float32_ptr),
    )


@triton.jit
def linear_at(table_ptr, place: tl.constexpr, like_ptr):
    """The addresses of a linear layer's weight and bias."""
    return weights_at(table_ptr, place, like_ptr), weights_at(table_ptr, place + 1, like_ptr)


@triton.jit
def load_norm_linear(
    addresses, share, K: tl.constexpr, TILES: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """A program's share of a NormLinear: weights, column sums and biases."""
    weight_ptr, column_sums_ptr, bias_ptr = addresses
    first, end = share
    weights = load_weights(weight_ptr, first, end, K, TILES, BLOCK_N, BLOCK_K)
    column_sums = load_vector(column_sums_ptr, first, end, TILES, BLOCK_N)
    return weights, column_sums, load_vector(bias_ptr, first, end, TILES, BLOCK_N)


@triton.jit
def load_linear(
    addresses, share, K: tl.constexpr, TILES: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """A program's share of a linear layer: weights and biases."""
    weight_ptr, bias_ptr = addresses
    first, end = share
    weights = load_weights(weight_ptr, first, end, K, TILES, BLOCK_N, BLOCK_K)
    return weights, load_vector(bias_ptr, first, end, TILES, BLOCK_N)


# --- products -------------------------------------------------------------------------------------------


@triton.jit
def load_row(x_ptr, K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """K numbers, float32, as each row of a share needs them: a tensor [BLOCK_N, BLOCK_K] for each chunk.

    Every warp loads all of them, which takes less time than to hand them from warp to warp.
    """
    k = tl.arange(0, BLOCK_K)
    row = ()
    for c in tl.static_range((K + BLOCK_K - 1) // BLOCK_K):
        column = c * BLOCK_K + k
        place = tl.broadcast_to((x_ptr + column)[None, :], [BLOCK_N, BLOCK_K])
        mask = tl.broadcast_to((column < K)[None, :], [BLOCK_N, BLOCK_K])
        row = row + (tl.load(place, mask=mask, other=0.0).to(tl.float32),)
    return row


@triton.jit
def dot(row, share, i: tl.constexpr, CHUNKS: tl.constexpr):
    """The product of a row and tile i of a share: [BLOCK_N]."""
    acc = row[0] * share[i * CHUNKS].to(tl.float32)
    for c in tl.static_range(1, CHUNKS):
        acc += row[c] * share[i * CHUNKS + c].to(tl.float32)
    return tl.sum(acc, axis=1)


@triton.jit
def mean_and_rstd(row, eps, K: tl.constexpr, BLOCK_K: tl.constexpr, CHUNKS: tl.constexpr):
    """Mean and reciprocal standard deviation of a row, each [BLOCK_N] of the same number."""
    total = row[0]
    for c in tl.static_range(1, CHUNKS):
        total += row[c]
    mean = tl.sum(total, axis=1) / K
    squares = tl.zeros_like(total)
    for c in tl.static_range(CHUNKS):
        in_k = c * BLOCK_K + tl.arange(0, BLOCK_K) < K
        apart = tl.where(in_k[None, :], row[c] - mean[:, None], 0.0)
        squares += apart * apart
    return mean, tl.rsqrt(tl.sum(squares, axis=1) / K + eps)


@triton.jit
def norm_product(
    x_ptr, layer, out_ptr, share, eps,
    K: tl.constexpr, GELU: tl.constexpr, TILES: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """LayerNorm, linear layer and perhaps GELU of the row: a program's share of the outputs."""
    weights, column_sums, biases = layer
    first, end = share
    CHUNKS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    row = load_row(x_ptr, K, BLOCK_N, BLOCK_K)
    mean, rstd = mean_and_rstd(row, eps, K, BLOCK_K, CHUNKS)
    for i in tl.static_range(TILES):
        n = first + i * BLOCK_N + tl.arange(0, BLOCK_N)
        out = rstd * (dot(row, weights, i, CHUNKS) - mean * column_sums[i]) + biases[i]
        if GELU:  # 0.5 * (1 + tanh(u)) is sigmoid(2 * u); 1.595... is 2 * sqrt(2 / pi)
            out = out * tl.sigmoid(1.5957691216057308 * (out + 0.044715 * out * out * out))
        tl.store(out_ptr + n, out.to(out_ptr.dtype.element_ty), mask=n < end)


@triton.jit
def add_product(row, layer, x_ptr, share, CHUNKS: tl.constexpr, TILES: tl.constexpr, BLOCK_N: tl.constexpr):
    """Add the linear layer of a row to a program's share of the one at x_ptr, in place: it alone reads it."""
    weights, biases = layer
    first, end = share
    for i in tl.static_range(TILES):
        n = first + i * BLOCK_N + tl.arange(0, BLOCK_N)
        rest = tl.load(x_ptr + n, mask=n < end, other=0.0).to(tl.float32) + biases[i]
        out = dot(row, weights, i, CHUNKS) + rest
        tl.store(x_ptr + n, out.to(x_ptr.dtype.element_ty), mask=n < end)


# --- attention ------------------------------------------------------------------------------------------
#
# A unit is a split of the tokens of a head, and a program has one or more. It stores the mean of the unit's
# values and the logarithm of its softmax's sum; the next phase puts the splits together.


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
