"""All layers of a decode step in one kernel."""

import torch

from labkit.kernels.fused_linear import linear_residual_plain, norm_linear_plain, row_statistics
from labkit.kernels.paged_attention_append import paged_attention_append_plain
from labkit.kernels.triton_runtime import INTERPRETED, tl, triton

# --- the barrier -----------------------------------------------------------------------------------


@triton.jit
def _arrive(barrier_ptr):
    tl.debug_barrier()  # all of this program's stores come before it says that it has arrived
    tl.atomic_add(barrier_ptr, 1, sem="release", scope="gpu")


@triton.jit
def _wait(barrier_ptr, target, SPIN: tl.constexpr):
    if SPIN == 0:
        while tl.atomic_add(barrier_ptr, 0, sem="acquire", scope="gpu") < target:
            pass
    if SPIN == 1:
        tl.inline_asm_elementwise(
            """
            {
            .reg .pred mine, again;
            .reg .u32 tid;
            mov.u32 tid, %tid.x;
            setp.eq.u32 mine, tid, 0;
            mov.u32 $0, 0;
            @!mine bra DONE;
            SPIN:
            ld.acquire.gpu.global.u32 $0, [$1];
            setp.lt.u32 again, $0, $2;
            @again bra SPIN;
            DONE:
            }
            """,
            "=r,l,r",
            [barrier_ptr, target],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    tl.debug_barrier()


@triton.jit
def _stamp(stamps_ptr, layer, which: tl.constexpr, STAMPS: tl.constexpr):
    if STAMPS:
        clock = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
        tl.store(stamps_ptr + (tl.program_id(0) * 12 + layer) * 10 + which, clock)


# --- products --------------------------------------------------------------------------------------


@triton.jit
def _pointer(table_ptr, layer, which: tl.constexpr, like_ptr):
    """The table's pointer to a tensor of numbers as those of like_ptr."""
    address = tl.load(table_ptr + layer * 10 + which)
    return tl.multiple_of(address.to(like_ptr.dtype), 16)


@triton.jit
def _load_share(weight_ptr, first, end, K: tl.constexpr, TILES: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    n, k = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    share = ()
    for i in tl.static_range(TILES):
        row = first + i * BLOCK_N + n
        in_n = row < end
        for c in tl.static_range((K + BLOCK_K - 1) // BLOCK_K):
            column = c * BLOCK_K + k
            mask = in_n[:, None] & (column < K)[None, :]
            place = weight_ptr + row[:, None] * K + column[None, :]
            share = share + (tl.load(place, mask=mask, other=0.0, eviction_policy="evict_first"),)
    return share


@triton.jit
def _load_vectors(vector_ptr, first, end, TILES: tl.constexpr, BLOCK_N: tl.constexpr):
    vectors = ()
    for i in tl.static_range(TILES):
        n = first + i * BLOCK_N + tl.arange(0, BLOCK_N)
        vectors = vectors + (tl.load(vector_ptr + n, mask=n < end, other=0.0).to(tl.float32),)
    return vectors


@triton.jit
def _load_row(x_ptr, K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, XMODE: tl.constexpr):
    """A row of K numbers, float32, as every one of BLOCK_N rows of a share needs it: K / BLOCK_K tiles."""
    k = tl.arange(0, BLOCK_K)
    row = ()
    for c in tl.static_range((K + BLOCK_K - 1) // BLOCK_K):
        column = c * BLOCK_K + k
        if XMODE == 0:
            place = tl.broadcast_to((x_ptr + column)[None, :], [BLOCK_N, BLOCK_K])
            mask = tl.broadcast_to((column < K)[None, :], [BLOCK_N, BLOCK_K])
            x = tl.load(place, mask=mask, other=0.0).to(tl.float32)
        else:
            x = tl.load(x_ptr + column, mask=column < K, other=0.0, cache_modifier=".cg").to(tl.float32)
            x = tl.broadcast_to(x[None, :], [BLOCK_N, BLOCK_K])
        row = row + (x,)
    return row


@triton.jit
def _dot(row, share, i: tl.constexpr, CHUNKS: tl.constexpr):
    """The product of a row and tile i of a share: [BLOCK_N]."""
    acc = row[0] * share[i * CHUNKS].to(tl.float32)
    for c in tl.static_range(1, CHUNKS):
        acc += row[c] * share[i * CHUNKS + c].to(tl.float32)
    return tl.sum(acc, axis=1)


@triton.jit
def _mean_and_rstd(row, K: tl.constexpr, BLOCK_K: tl.constexpr, CHUNKS: tl.constexpr, eps):
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
def _norm_product(
    x_ptr, share, sums, biases, out_ptr, first, end, eps,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GELU: tl.constexpr,
    TILES: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, XMODE: tl.constexpr, UNROLL: tl.constexpr,
):
    CHUNKS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    for m in tl.range(0, M, num_stages=1, loop_unroll_factor=UNROLL):
        row = _load_row(x_ptr + m * K, K, BLOCK_N, BLOCK_K, XMODE)
        mean, rstd = _mean_and_rstd(row, K, BLOCK_K, CHUNKS, eps)
        for i in tl.static_range(TILES):
            n = first + i * BLOCK_N + tl.arange(0, BLOCK_N)
            acc = rstd * (_dot(row, share, i, CHUNKS) - mean * sums[i]) + biases[i]
            if GELU:  # 0.5 * (1 + tanh(u)) is sigmoid(2 * u); 1.595... is 2 * sqrt(2 / pi)
                acc = acc * tl.sigmoid(1.5957691216057308 * (acc + 0.044715 * acc * acc * acc))
            tl.store(out_ptr + m * N + n, acc.to(out_ptr.dtype.element_ty), mask=n < end)


@triton.jit
def _residual_product(
    row, share, biases, x_ptr, m, first, end,
    N: tl.constexpr, CHUNKS: tl.constexpr, TILES: tl.constexpr, BLOCK_N: tl.constexpr,
):
    for i in tl.static_range(TILES):
        n = first + i * BLOCK_N + tl.arange(0, BLOCK_N)
        rest = tl.load(x_ptr + m * N + n, mask=n < end, other=0.0).to(tl.float32) + biases[i]
        acc = _dot(row, share, i, CHUNKS) + rest
        tl.store(x_ptr + m * N + n, acc.to(x_ptr.dtype.element_ty), mask=n < end)


# --- attention -------------------------------------------------------------------------------------


@triton.jit
def _load_attended(
    m, partial_ptr, lse_ptr, H: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """Attention of row m, put together from its splits, as `_load_row` gives a row."""
    E: tl.constexpr = H * D
    row = ()
    for c in tl.static_range((E + BLOCK_K - 1) // BLOCK_K):
        column = c * BLOCK_K + tl.arange(0, BLOCK_K)
        in_k = column < E
        partial = partial_ptr + m * SPLITS * E + column
        lse = lse_ptr + m * SPLITS * H + column // D
        largest = tl.load(lse, mask=in_k, other=0.0, cache_modifier=".cg")
        for s in tl.static_range(1, SPLITS):
            largest = tl.maximum(largest, tl.load(lse + s * H, mask=in_k, other=0.0, cache_modifier=".cg"))
        total = tl.zeros([BLOCK_K], tl.float32)
        acc = tl.zeros([BLOCK_K], tl.float32)
        for s in tl.static_range(SPLITS):
            weight = tl.exp(tl.load(lse + s * H, mask=in_k, other=0.0, cache_modifier=".cg") - largest)
            total += weight
            acc += weight * tl.load(partial + s * E, mask=in_k, other=0.0, cache_modifier=".cg")
        row = row + (tl.broadcast_to((acc / total)[None, :], [BLOCK_N, BLOCK_K]),)
    return row


@triton.jit
def _place_of_unit(unit, slot_mapping_ptr, context_lens_ptr, units, H: tl.constexpr, SPLITS: tl.constexpr):
    """Row, head, share, slot and context length of a unit; beyond the last unit nothing is in the cache."""
    b, h, split = unit // (H * SPLITS), unit // SPLITS % H, unit % SPLITS
    slot = tl.load(slot_mapping_ptr + b, mask=unit < units, other=0)
    context_len = tl.load(context_lens_ptr + slot, mask=unit < units, other=-1)
    return b, h, split, slot, context_len


@triton.jit
def _load_blocks(table_ptr, start, table_size, block_size: tl.constexpr, BLOCK_T: tl.constexpr):
    token = start + tl.arange(0, BLOCK_T)
    return tl.load(table_ptr + tl.minimum(token // block_size, table_size - 1))


@triton.jit
def _load_piece(
    k_cache_ptr, v_cache_ptr, blocks, start, context_len, h,
    stride_n, stride_h, stride_t, D: tl.constexpr, block_size: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """Keys and values of the tokens from start on, 0 past the end."""
    token = start + tl.arange(0, BLOCK_T)
    d = tl.arange(0, BLOCK_D)
    row = blocks.to(tl.int64) * stride_n + h * stride_h + (token % block_size) * stride_t
    place = row[:, None] + d[None, :]
    mask = (token < context_len)[:, None] & (d < D)[None, :]
    keys = tl.load(k_cache_ptr + place, mask=mask, other=0.0, eviction_policy="evict_first")
    values = tl.load(v_cache_ptr + place, mask=mask, other=0.0, eviction_policy="evict_first")
    return keys, values


@triton.jit
def _attend(
    b, h, split, context_len, keys, values, qkv_ptr, k_cache_ptr, v_cache_ptr, table_ptr, table_size,
    partial_ptr, lse_ptr, stride_n, stride_h, stride_t, scale,
    H: tl.constexpr, D: tl.constexpr, block_size: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):
    E: tl.constexpr = H * D
    t, d = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_D)
    in_head = d < D
    new = qkv_ptr + b * (3 * E) + h * D + d
    query = tl.load(new, mask=in_head, other=0.0, cache_modifier=".cg").to(tl.float32) * scale
    key = tl.load(new + E, mask=in_head, other=0.0, cache_modifier=".cg")
    value = tl.load(new + 2 * E, mask=in_head, other=0.0, cache_modifier=".cg")
    own_score = tl.sum(query * key.to(tl.float32), axis=0)
    if (split == 0) & (context_len >= 0):
        block = tl.load(table_ptr + context_len // block_size).to(tl.int64)
        place = block * stride_n + h * stride_h + (context_len % block_size) * stride_t + d
        tl.store(k_cache_ptr + place, key, mask=in_head)
        tl.store(v_cache_ptr + place, value, mask=in_head)
    largest = tl.zeros([BLOCK_T], tl.float32) + own_score
    total = tl.zeros([BLOCK_T], tl.float32)
    acc = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    for start in range(split * BLOCK_T, context_len, SPLITS * BLOCK_T):
        live = start + t < context_len
        scores = tl.where(live, tl.sum(query[None, :] * keys.to(tl.float32), axis=1), float("-inf"))
        new_largest = tl.maximum(largest, scores)
        correction = tl.exp(largest - new_largest)
        weights = tl.exp(scores - new_largest)
        acc = acc * correction[:, None] + weights[:, None] * values.to(tl.float32)
        total = total * correction + weights
        largest = new_largest
        following = start + SPLITS * BLOCK_T
        blocks = _load_blocks(table_ptr, following, table_size, block_size, BLOCK_T)
        keys, values = _load_piece(
            k_cache_ptr, v_cache_ptr, blocks, following, context_len, h,
            stride_n, stride_h, stride_t, D, block_size, BLOCK_T, BLOCK_D,
        )
    all_largest = tl.max(largest, axis=0)
    shares = tl.exp(largest - all_largest)
    own_weight = tl.exp(own_score - all_largest) * (split == 0).to(tl.float32)
    sum_total = tl.sum(total * shares, axis=0) + own_weight
    sum_acc = tl.sum(acc * shares[:, None], axis=0) + own_weight * value.to(tl.float32)
    tl.store(lse_ptr + (b * SPLITS + split) * H + h, all_largest + tl.log(sum_total))
    mean = tl.where(sum_total > 0, sum_acc / sum_total, 0.0)  # a share may have no tokens
    tl.store(partial_ptr + (b * SPLITS + split) * E + h * D + d, mean.to(partial_ptr.dtype.element_ty), mask=in_head)


# --- all of it -------------------------------------------------------------------------------------


@triton.jit
def _decode_layers_kernel(
    x_ptr, table_ptr, float_ptr, qkv_ptr, partial_ptr, lse_ptr, inner_ptr, barrier_ptr,
    k_cache_ptr, v_cache_ptr, block_tables_ptr, context_lens_ptr, slot_mapping_ptr,
    stride_l, stride_n, stride_h, stride_t, tables_stride_t, tables_stride_s, table_size,
    num_layers, num_tables, eps_attention, eps_mlp, scale,
    M: tl.constexpr, H: tl.constexpr, D: tl.constexpr, INNER: tl.constexpr, block_size: tl.constexpr, P: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    AHEAD: tl.constexpr, SPIN: tl.constexpr, XMODE: tl.constexpr, UNROLL: tl.constexpr, STAMPS: tl.constexpr, stamps_ptr,
):
    E: tl.constexpr = H * D
    E_CHUNKS: tl.constexpr = (E + BLOCK_K - 1) // BLOCK_K
    INNER_CHUNKS: tl.constexpr = (INNER + BLOCK_K - 1) // BLOCK_K
    QKV_ROWS: tl.constexpr = (3 * E + P - 1) // P
    E_ROWS: tl.constexpr = (E + P - 1) // P
    INNER_ROWS: tl.constexpr = (INNER + P - 1) // P
    QKV_TILES: tl.constexpr = (QKV_ROWS + BLOCK_N - 1) // BLOCK_N
    E_TILES: tl.constexpr = (E_ROWS + BLOCK_N - 1) // BLOCK_N
    INNER_TILES: tl.constexpr = (INNER_ROWS + BLOCK_N - 1) // BLOCK_N
    units: tl.constexpr = M * H * SPLITS

    pid = tl.program_id(0)
    qkv_first, e_first, inner_first = pid * QKV_ROWS, pid * E_ROWS, pid * INNER_ROWS
    qkv_end = tl.minimum(qkv_first + QKV_ROWS, 3 * E)
    e_end = tl.minimum(e_first + E_ROWS, E)
    inner_end = tl.minimum(inner_first + INNER_ROWS, INNER)

    b, h, split, slot, context_len = _place_of_unit(pid, slot_mapping_ptr, context_lens_ptr, units, H, SPLITS)
    blocks = _load_blocks(block_tables_ptr + slot * tables_stride_s, split * BLOCK_T, table_size, block_size, BLOCK_T)
    qkv = _load_share(_pointer(table_ptr, 0, 0, x_ptr), qkv_first, qkv_end, E, QKV_TILES, BLOCK_N, BLOCK_K)
    qkv_sums = _load_vectors(_pointer(table_ptr, 0, 1, float_ptr), qkv_first, qkv_end, QKV_TILES, BLOCK_N)
    qkv_biases = _load_vectors(_pointer(table_ptr, 0, 2, float_ptr), qkv_first, qkv_end, QKV_TILES, BLOCK_N)
    if AHEAD == 2:
        keys, values = _load_piece(
            k_cache_ptr, v_cache_ptr, blocks, split * BLOCK_T, context_len, h,
            stride_n, stride_h, stride_t, D, block_size, BLOCK_T, BLOCK_D,
        )
    k_layer, v_layer = k_cache_ptr, v_cache_ptr
    target = P
    for layer in tl.range(0, num_layers, num_stages=1):
        table = block_tables_ptr + (layer % num_tables) * tables_stride_t
        following = layer + (layer + 1 < num_layers)

        # A: queries, keys and values
        _norm_product(
            x_ptr, qkv, qkv_sums, qkv_biases, qkv_ptr, qkv_first, qkv_end, eps_attention,
            M, 3 * E, E, False, QKV_TILES, BLOCK_N, BLOCK_K, XMODE, UNROLL,
        )
        _stamp(stamps_ptr, layer, 0, STAMPS)
        _arrive(barrier_ptr)
        if AHEAD == 1:
            keys, values = _load_piece(
                k_layer, v_layer, blocks, split * BLOCK_T, context_len, h,
                stride_n, stride_h, stride_t, D, block_size, BLOCK_T, BLOCK_D,
            )
        if AHEAD == 2:
            out_share = _load_share(_pointer(table_ptr, layer, 3, x_ptr), e_first, e_end, E, E_TILES, BLOCK_N, BLOCK_K)
            out_biases = _load_vectors(_pointer(table_ptr, layer, 4, x_ptr), e_first, e_end, E_TILES, BLOCK_N)
        _wait(barrier_ptr, target, SPIN)
        _stamp(stamps_ptr, layer, 1, STAMPS)
        target += P
        if AHEAD == 0:
            keys, values = _load_piece(
                k_layer, v_layer, blocks, split * BLOCK_T, context_len, h,
                stride_n, stride_h, stride_t, D, block_size, BLOCK_T, BLOCK_D,
            )

        # B: attention
        if pid < units:
            _attend(
                b, h, split, context_len, keys, values, qkv_ptr, k_layer, v_layer,
                table + slot * tables_stride_s, table_size, partial_ptr, lse_ptr,
                stride_n, stride_h, stride_t, scale, H, D, block_size, SPLITS, BLOCK_T, BLOCK_D,
            )
        for turn in range(1, (units + P - 1) // P):
            unit = pid + turn * P
            b_, h_, split_, slot_, context_len_ = _place_of_unit(
                unit, slot_mapping_ptr, context_lens_ptr, units, H, SPLITS
            )
            blocks_ = _load_blocks(table + slot_ * tables_stride_s, split_ * BLOCK_T, table_size, block_size, BLOCK_T)
            keys_, values_ = _load_piece(
                k_layer, v_layer, blocks_, split_ * BLOCK_T, context_len_, h_,
                stride_n, stride_h, stride_t, D, block_size, BLOCK_T, BLOCK_D,
            )
            if unit < units:
                _attend(
                    b_, h_, split_, context_len_, keys_, values_, qkv_ptr, k_layer, v_layer,
                    table + slot_ * tables_stride_s, table_size, partial_ptr, lse_ptr,
                    stride_n, stride_h, stride_t, scale, H, D, block_size, SPLITS, BLOCK_T, BLOCK_D,
                )
        _stamp(stamps_ptr, layer, 2, STAMPS)
        _arrive(barrier_ptr)
        if AHEAD == 1:
            out_share = _load_share(_pointer(table_ptr, layer, 3, x_ptr), e_first, e_end, E, E_TILES, BLOCK_N, BLOCK_K)
            out_biases = _load_vectors(_pointer(table_ptr, layer, 4, x_ptr), e_first, e_end, E_TILES, BLOCK_N)
        if AHEAD == 2:
            in_share = _load_share(_pointer(table_ptr, layer, 5, x_ptr), inner_first, inner_end, E, INNER_TILES, BLOCK_N, BLOCK_K)
            in_sums = _load_vectors(_pointer(table_ptr, layer, 6, float_ptr), inner_first, inner_end, INNER_TILES, BLOCK_N)
            in_biases = _load_vectors(_pointer(table_ptr, layer, 7, float_ptr), inner_first, inner_end, INNER_TILES, BLOCK_N)
        next_table = block_tables_ptr + (following % num_tables) * tables_stride_t
        blocks = _load_blocks(next_table + slot * tables_stride_s, split * BLOCK_T, table_size, block_size, BLOCK_T)
        _wait(barrier_ptr, target, SPIN)
        _stamp(stamps_ptr, layer, 3, STAMPS)
        target += P
        if AHEAD == 0:
            out_share = _load_share(_pointer(table_ptr, layer, 3, x_ptr), e_first, e_end, E, E_TILES, BLOCK_N, BLOCK_K)
            out_biases = _load_vectors(_pointer(table_ptr, layer, 4, x_ptr), e_first, e_end, E_TILES, BLOCK_N)

        # C: attention's output
        for m in tl.range(0, M, num_stages=1, loop_unroll_factor=UNROLL):
            if SPLITS == 1:
                row = _load_row(partial_ptr + m * E, E, BLOCK_N, BLOCK_K, XMODE)
            else:
                row = _load_attended(m, partial_ptr, lse_ptr, H, D, SPLITS, BLOCK_N, BLOCK_K)
            _residual_product(row, out_share, out_biases, x_ptr, m, e_first, e_end, E, E_CHUNKS, E_TILES, BLOCK_N)
        _stamp(stamps_ptr, layer, 4, STAMPS)
        _arrive(barrier_ptr)
        if AHEAD == 1:
            in_share = _load_share(_pointer(table_ptr, layer, 5, x_ptr), inner_first, inner_end, E, INNER_TILES, BLOCK_N, BLOCK_K)
            in_sums = _load_vectors(_pointer(table_ptr, layer, 6, float_ptr), inner_first, inner_end, INNER_TILES, BLOCK_N)
            in_biases = _load_vectors(_pointer(table_ptr, layer, 7, float_ptr), inner_first, inner_end, INNER_TILES, BLOCK_N)
        if AHEAD == 2:
            proj_share = _load_share(_pointer(table_ptr, layer, 8, x_ptr), e_first, e_end, INNER, E_TILES, BLOCK_N, BLOCK_K)
            proj_biases = _load_vectors(_pointer(table_ptr, layer, 9, x_ptr), e_first, e_end, E_TILES, BLOCK_N)
        _wait(barrier_ptr, target, SPIN)
        _stamp(stamps_ptr, layer, 5, STAMPS)
        target += P
        if AHEAD == 0:
            in_share = _load_share(_pointer(table_ptr, layer, 5, x_ptr), inner_first, inner_end, E, INNER_TILES, BLOCK_N, BLOCK_K)
            in_sums = _load_vectors(_pointer(table_ptr, layer, 6, float_ptr), inner_first, inner_end, INNER_TILES, BLOCK_N)
            in_biases = _load_vectors(_pointer(table_ptr, layer, 7, float_ptr), inner_first, inner_end, INNER_TILES, BLOCK_N)

        # D: into the MLP
        _norm_product(
            x_ptr, in_share, in_sums, in_biases, inner_ptr, inner_first, inner_end, eps_mlp,
            M, INNER, E, True, INNER_TILES, BLOCK_N, BLOCK_K, XMODE, UNROLL,
        )
        _stamp(stamps_ptr, layer, 6, STAMPS)
        _arrive(barrier_ptr)
        if AHEAD == 1:
            proj_share = _load_share(_pointer(table_ptr, layer, 8, x_ptr), e_first, e_end, INNER, E_TILES, BLOCK_N, BLOCK_K)
            proj_biases = _load_vectors(_pointer(table_ptr, layer, 9, x_ptr), e_first, e_end, E_TILES, BLOCK_N)
        if AHEAD == 2:
            qkv = _load_share(_pointer(table_ptr, following, 0, x_ptr), qkv_first, qkv_end, E, QKV_TILES, BLOCK_N, BLOCK_K)
            qkv_sums = _load_vectors(_pointer(table_ptr, following, 1, float_ptr), qkv_first, qkv_end, QKV_TILES, BLOCK_N)
            qkv_biases = _load_vectors(_pointer(table_ptr, following, 2, float_ptr), qkv_first, qkv_end, QKV_TILES, BLOCK_N)
        _wait(barrier_ptr, target, SPIN)
        _stamp(stamps_ptr, layer, 7, STAMPS)
        target += P
        if AHEAD == 0:
            proj_share = _load_share(_pointer(table_ptr, layer, 8, x_ptr), e_first, e_end, INNER, E_TILES, BLOCK_N, BLOCK_K)
            proj_biases = _load_vectors(_pointer(table_ptr, layer, 9, x_ptr), e_first, e_end, E_TILES, BLOCK_N)

        # E: out of the MLP
        for m in tl.range(0, M, num_stages=1, loop_unroll_factor=UNROLL):
            row = _load_row(inner_ptr + m * INNER, INNER, BLOCK_N, BLOCK_K, XMODE)
            _residual_product(row, proj_share, proj_biases, x_ptr, m, e_first, e_end, E, INNER_CHUNKS, E_TILES, BLOCK_N)
        if layer + 1 < num_layers:
            _stamp(stamps_ptr, layer, 8, STAMPS)
            _arrive(barrier_ptr)
        if AHEAD == 1:
            qkv = _load_share(_pointer(table_ptr, following, 0, x_ptr), qkv_first, qkv_end, E, QKV_TILES, BLOCK_N, BLOCK_K)
            qkv_sums = _load_vectors(_pointer(table_ptr, following, 1, float_ptr), qkv_first, qkv_end, QKV_TILES, BLOCK_N)
            qkv_biases = _load_vectors(_pointer(table_ptr, following, 2, float_ptr), qkv_first, qkv_end, QKV_TILES, BLOCK_N)
        if AHEAD == 2:
            offset = (following - layer) * stride_l
            keys, values = _load_piece(
                k_layer + offset, v_layer + offset, blocks, split * BLOCK_T, context_len, h,
                stride_n, stride_h, stride_t, D, block_size, BLOCK_T, BLOCK_D,
            )
        if layer + 1 < num_layers:
            _wait(barrier_ptr, target, SPIN)
            _stamp(stamps_ptr, layer, 9, STAMPS)
        target += P
        if AHEAD == 0:
            qkv = _load_share(_pointer(table_ptr, following, 0, x_ptr), qkv_first, qkv_end, E, QKV_TILES, BLOCK_N, BLOCK_K)
            qkv_sums = _load_vectors(_pointer(table_ptr, following, 1, float_ptr), qkv_first, qkv_end, QKV_TILES, BLOCK_N)
            qkv_biases = _load_vectors(_pointer(table_ptr, following, 2, float_ptr), qkv_first, qkv_end, QKV_TILES, BLOCK_N)
        k_layer += stride_l
        v_layer += stride_l
    # The last to come leaves the barrier as it found it.
    tl.debug_barrier()
    if tl.atomic_add(barrier_ptr, 1, sem="acq_rel", scope="gpu") == (5 * num_layers) * P - 1:
        tl.store(barrier_ptr, 0)


# --- the wrapper -----------------------------------------------------------------------------------

MAX_ROWS = 8
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


class LayerTable:
    """Where the weights of a network's layers lie, for a kernel that walks through all of them."""

    def __init__(self, layers):
        self.layers = tuple(layers)
        self.zeros = torch.zeros_like(self.layers[0].attention_out.weight[:, 0])
        rows = []
        for layer in self.layers:
            tensors = [
                *layer.qkv[:3],
                layer.attention_out.weight,
                self.zeros if layer.attention_out.bias is None else layer.attention_out.bias,
                *layer.mlp_in[:3],
                layer.mlp_out.weight,
                self.zeros if layer.mlp_out.bias is None else layer.mlp_out.bias,
            ]
            rows.append([tensor.data_ptr() for tensor in tensors])
        self.pointers = torch.tensor(rows, dtype=torch.int64, device=self.zeros.device)


def make_barrier(device):
    with torch.inference_mode(False):
        return torch.zeros(1, dtype=torch.int32, device=device)


def launch(x, table, k_cache, v_cache, block_tables, context_lens, slot_mapping, barrier, *,
           programs, splits, block_t, num_warps=8, block_n=None, ahead=2, spin=1, xmode=0, cooperative=True, unroll=1, stamps=None):
    (M, E), first = x.shape, table.layers[0]
    L, N, H, block_size, D = k_cache.shape
    inner_size = len(first.mlp_in.weight)
    like_x = {"dtype": x.dtype, "device": x.device}
    qkv = torch.empty(M, 3 * E, **like_x)
    inner = torch.empty(M, inner_size, **like_x)
    partial = torch.empty(M, splits, E, dtype=torch.float32 if splits > 1 else x.dtype, device=x.device)
    lse = torch.empty(M, splits, H, dtype=torch.float32, device=x.device)
    options = {} if INTERPRETED else {"launch_cooperative_grid": cooperative}
    try:
        _decode_layers_kernel[(programs,)](
            x, table.pointers, lse, qkv, partial, lse, inner, barrier,
            k_cache, v_cache, block_tables, context_lens, slot_mapping,
            *k_cache.stride()[:4], *block_tables.stride()[:2], block_tables.shape[2],
            L, len(block_tables), first.qkv.eps, first.mlp_in.eps, D**-0.5,
            M=M, H=H, D=D, INNER=inner_size, block_size=block_size, P=programs,
            SPLITS=splits, BLOCK_T=block_t, BLOCK_D=triton.next_power_of_2(D), BLOCK_N=block_n or num_warps,
            BLOCK_K=512 // x.element_size(), AHEAD=ahead, SPIN=spin, XMODE=xmode,
            UNROLL=unroll, STAMPS=stamps is not None, stamps_ptr=stamps,
            num_warps=num_warps, num_stages=1, **options,
        )
    except BaseException:
        barrier.zero_()
        raise
    return x


def decode_layers_plain(x, table, k_cache, v_cache, block_tables, context_lens, slot_mapping):
    B, E = x.shape
    H, D = k_cache.shape[2], k_cache.shape[4]
    longest = max(0, int(context_lens[slot_mapping].max()))
    hidden = x
    for layer_idx, layer in enumerate(table.layers):
        statistics = row_statistics(hidden, E)
        qkv = norm_linear_plain(hidden, statistics, layer.qkv)
        query, key, value = qkv.view(B, 3, H, D).unbind(1)
        attended = paged_attention_append_plain(
            query, key, value, k_cache[layer_idx], v_cache[layer_idx],
            block_tables[layer_idx % len(block_tables)], context_lens, slot_mapping, longest,
        )
        hidden, statistics = linear_residual_plain(attended.reshape(B, E), *layer.attention_out, hidden)
        inner = norm_linear_plain(hidden, statistics, layer.mlp_in, gelu=True)
        hidden, _ = linear_residual_plain(inner, *layer.mlp_out, hidden)
    return x.copy_(hidden)
