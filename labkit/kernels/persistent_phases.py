"""Parts of the kernel in `persistent_layers`: its barrier and its products.

A program has a share of a product's outputs: `first` to `end`, in tiles of BLOCK_N. It holds their weights
in registers, as a tuple of [BLOCK_N, BLOCK_K] tensors, chunk by chunk: a warp has whole rows of them, so that
no sum crosses warps.
"""

# ruff: noqa: RUF005  # Triton's tuples grow by +

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
