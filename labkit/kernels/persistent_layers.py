"""All layers of a decode step in one kernel, for a single row: what takes long there is the way from one
kernel to the next.

One program per multiprocessor stays for the whole step. A layer is five phases, and behind each phase all
programs wait for each other at a barrier in memory. A product's weights do not depend on what is computed, so
each program asks for its share of them two phases ahead, and has them in registers when their phase begins.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from labkit.kernels.checks import check_range, check_tensor
from labkit.kernels.eight_bit import check_caches, is_eight_bit
from labkit.kernels.fused_linear import FLOATS, norm_linear_plain, row_statistics
from labkit.kernels.linear_residual import linear_residual_plain
from labkit.kernels.paged_attention_append import paged_attention_append_plain
from labkit.kernels.persistent_phases import (
    add_product,
    arrive,
    attend,
    leave,
    linear_at,
    load_attended,
    load_linear,
    load_norm_linear,
    load_row,
    norm_linear_at,
    norm_product,
    wait,
)
from labkit.kernels.running_softmax import load_blocks, load_tokens
from labkit.kernels.triton_runtime import INTERPRETED, check_launchable, tl, triton

MAX_SPLITS = 4  # of a head's tokens: their results are put together by every program
NUM_WARPS = 8
BLOCK_N = 8  # a warp has one output of a tile
TOKENS_AT_A_TIME = 128
ALIGNMENT = 16  # bytes: at a multiple of it each weight begins that the kernel reads


def make_barrier(device: torch.device) -> Tensor:
    """The counter [1] int32 of a barrier, at 0: for launches that follow each other, as in one stream."""
    with torch.inference_mode(False):  # or it could not be set outside of inference mode
        return torch.zeros(1, dtype=torch.int32, device=device)


# --- where the weights are ------------------------------------------------------------------------------

# Of a layer, in the order of its phases; each place of a table holds an address.
TENSORS = (
    ("qkv", "weight"),
    ("qkv", "column_sums"),
    ("qkv", "bias"),
    ("attention_out", "weight"),
    ("attention_out", "bias"),
    ("mlp_in", "weight"),
    ("mlp_in", "column_sums"),
    ("mlp_in", "bias"),
    ("mlp_out", "weight"),
    ("mlp_out", "bias"),
)


class LayerTable:
    """The layers of a decoder, and the addresses of their weights."""

    def __init__(self, layers: Sequence[Any]) -> None:
        """layers: of one network, each with the products of TENSORS: qkv and mlp_in as `fold_layer_norm`
        makes them, the others with a weight [N, K] and a bias [N] or None.

        Raises ValueError naming the first tensor that is not contiguous."""
        self.layers = tuple(layers)
        no_bias = torch.zeros_like(self.layers[0].attention_out.weight[:, 0])
        self._tensors = []
        for i, layer in enumerate(self.layers):
            for product, name in TENSORS:
                tensor = getattr(getattr(layer, product), name)
                tensor = no_bias if tensor is None else tensor
                label = f"layers[{i}].{product}.{name}"
                check_tensor(label, tensor, shape=tuple(tensor.shape), is_contiguous=True)
                self._tensors.append(tensor)

    @cached_property
    def addresses(self) -> Tensor:
        """Of each layer's TENSORS: [L, 10] int64. A weight that does not begin at a multiple of ALIGNMENT is
        copied when they are first asked for, as a checkpoint's can be on the CPU, where it lies in the file's
        own memory."""
        self._tensors = [t.clone() if t.data_ptr() % ALIGNMENT else t for t in self._tensors]
        addresses = [tensor.data_ptr() for tensor in self._tensors]
        device = self._tensors[0].device
        return torch.tensor(addresses, dtype=torch.int64, device=device).view(-1, len(TENSORS))


# --- the two forms --------------------------------------------------------------------------------------


def decode_layers_plain(
    x: Tensor,  # [1, E]
    table: LayerTable,
    k_cache: Tensor,  # [L, N, H, block_size, D]
    v_cache: Tensor,  # [L, N, H, block_size, D]
    block_tables: Tensor,  # [T, S, M] int32; layer i has table i % T
    context_lens: Tensor,  # [S] int32, tokens in the cache, the current one not among them; below 0: padding
    slot_mapping: Tensor,  # [1] int64
) -> Tensor:  # [1, E]
    """Take one token of one request through all layers: x becomes the last layer's output, in place, and each
    layer's new key and value are stored.

    Plain PyTorch: the oracle of `decode_layers_persistent_triton`. Raises ValueError for arguments that do
    not fit.
    """
    check_decode_layers(x, table, k_cache, v_cache, block_tables, context_lens, slot_mapping)
    E, (H, D) = x.shape[1], k_cache.shape[2::2]
    longest = max(0, int(context_lens[slot_mapping].max()))
    hidden = x
    for layer_idx, layer in enumerate(table.layers):
        qkv = norm_linear_plain(hidden, row_statistics(hidden, E), layer.qkv)
        attended = paged_attention_append_plain(
            *qkv.view(1, 3, H, D).unbind(1),
            k_cache[layer_idx],
            v_cache[layer_idx],
            block_tables[layer_idx % len(block_tables)],
            context_lens,
            slot_mapping,
            longest,
        )
        out = layer.attention_out
        hidden, statistics = linear_residual_plain(attended.view(1, E), out.weight, out.bias, hidden)
        inner = norm_linear_plain(hidden, statistics, layer.mlp_in, gelu=True)
        hidden, _ = linear_residual_plain(inner, layer.mlp_out.weight, layer.mlp_out.bias, hidden)
    return x.copy_(hidden)


def decode_layers_persistent_triton(
    x: Tensor,
    table: LayerTable,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    slot_mapping: Tensor,
    barrier: Tensor,
    *,
    splits: int | None = None,
) -> Tensor:
    """Take one token of one request through all layers in one kernel: x becomes the last layer's output, in
    place, and each layer's new key and value are stored.

    Takes what `decode_layers_plain` takes. barrier: from `make_barrier`, its own for each engine. splits:
    programs that share a head's tokens, a power of 2; None picks it by the sizes. The same arguments give the
    same bits. Raises ValueError for arguments that do not fit, and TritonUnavailableError where no kernel
    runs.
    """
    check_decode_layers(x, table, k_cache, v_cache, block_tables, context_lens, slot_mapping)
    check_launchable(x.device)
    check_tensor("barrier", barrier, shape=(1,), dtype=torch.int32, device=x.device)
    E, (_, _, H, block_size, D) = x.shape[1], k_cache.shape
    inner_size = len(table.layers[0].mlp_in.weight)
    programs = num_programs(x.device)
    splits = num_splits(H, programs) if splits is None else splits
    if splits < 1 or splits & (splits - 1):
        raise ValueError(f"splits is {splits}, expected a power of 2")
    qkv = x.new_empty(3 * E)
    partials = x.new_empty(splits, E, dtype=x.dtype if splits == 1 else torch.float32)
    log_sums = x.new_empty(splits, H, dtype=torch.float32)
    inner = x.new_empty(inner_size)
    try:
        _decode_layers_kernel[(programs,)](
            x,
            table.addresses,
            *(qkv, partials, log_sums, inner, barrier),
            *(k_cache, v_cache, block_tables, context_lens, slot_mapping),
            *k_cache.stride()[:4],
            *block_tables.stride()[:2],
            block_tables.shape[2],
            len(table.layers),
            len(block_tables),
            table.layers[0].qkv.eps,
            table.layers[0].mlp_in.eps,
            D**-0.5,
            H=H,
            D=D,
            INNER=inner_size,
            block_size=block_size,
            PROGRAMS=programs,
            SPLITS=splits,
            BLOCK_T=TOKENS_AT_A_TIME * 2 // x.element_size(),
            BLOCK_D=triton.next_power_of_2(D),
            BLOCK_N=BLOCK_N,
            BLOCK_K=512 // x.element_size(),  # 16 bytes for each thread of a warp
            num_warps=NUM_WARPS,
            num_stages=1,
            **together(),
        )
    except BaseException:  # the interpreter, stopped on its way
        barrier.zero_()
        raise
    return x


def num_programs(device: torch.device) -> int:
    """Programs of a launch: one per multiprocessor. One in the interpreter, where programs follow each
    other: none could wait for the next."""
    return 1 if INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count


def num_splits(num_heads: int, programs: int) -> int:
    """Splits of the tokens of each head: as many as there are programs for."""
    splits = MAX_SPLITS
    while splits > 1 and num_heads * splits > programs:
        splits //= 2
    return splits


def together() -> dict[str, Any]:
    """Launch options of programs that wait for each other: all start, or none does until there is room, so
    that two such kernels at once cannot each hold what the other waits for."""
    return {} if INTERPRETED else {"launch_cooperative_grid": True}


# --- the kernel -----------------------------------------------------------------------------------------


@triton.jit
def _decode_layers_kernel(
    x_ptr, table_ptr, qkv_ptr, partial_ptr, log_sums_ptr, inner_ptr, barrier_ptr, k_cache_ptr, v_cache_ptr,
    block_tables_ptr, context_lens_ptr, slot_mapping_ptr,
    cache_stride_l, cache_stride_n, cache_stride_h, cache_stride_t, tables_stride_t, tables_stride_s,
    table_size, num_layers, num_tables, attention_eps, mlp_eps, scale,
    H: tl.constexpr, D: tl.constexpr, INNER: tl.constexpr, block_size: tl.constexpr, PROGRAMS: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    E: tl.constexpr = H * D
    E_CHUNKS: tl.constexpr = (E + BLOCK_K - 1) // BLOCK_K
    INNER_CHUNKS: tl.constexpr = (INNER + BLOCK_K - 1) // BLOCK_K
    # Outputs of a program, and their tiles: of queries, keys and values; of E; of the MLP's inner numbers.
    QKV_SHARE: tl.constexpr = (3 * E + PROGRAMS - 1) // PROGRAMS
    E_SHARE: tl.constexpr = (E + PROGRAMS - 1) // PROGRAMS
    INNER_SHARE: tl.constexpr = (INNER + PROGRAMS - 1) // PROGRAMS
    QKV_TILES: tl.constexpr = (QKV_SHARE + BLOCK_N - 1) // BLOCK_N
    E_TILES: tl.constexpr = (E_SHARE + BLOCK_N - 1) // BLOCK_N
    INNER_TILES: tl.constexpr = (INNER_SHARE + BLOCK_N - 1) // BLOCK_N
    UNITS: tl.constexpr = H * SPLITS
    pid = tl.program_id(0)
    qkv_share = pid * QKV_SHARE, tl.minimum(pid * QKV_SHARE + QKV_SHARE, 3 * E)
    e_share = pid * E_SHARE, tl.minimum(pid * E_SHARE + E_SHARE, E)
    inner_share = pid * INNER_SHARE, tl.minimum(pid * INNER_SHARE + INNER_SHARE, INNER)
    partials = partial_ptr, log_sums_ptr
    f32_ptr = log_sums_ptr

    slot = tl.load(slot_mapping_ptr)
    context_len = tl.load(context_lens_ptr + slot, mask=pid < UNITS, other=-1)
    h, start = pid // SPLITS % H, pid % SPLITS * BLOCK_T  # of the program's first unit
    block_tables_ptr += slot * tables_stride_s
    t = tl.arange(0, BLOCK_T)
    pools = k_cache_ptr, v_cache_ptr
    layout = cache_stride_n, cache_stride_h, cache_stride_t, block_size, D, table_size
    blocks = load_blocks(layout, block_tables_ptr, start, t)
    qkv_addresses = norm_linear_at(table_ptr, 0, x_ptr, f32_ptr)
    qkv = load_norm_linear(qkv_addresses, qkv_share, E, QKV_TILES, BLOCK_N, BLOCK_K)
    d = tl.arange(0, BLOCK_D)
    piece = load_tokens(pools, layout, blocks, start, start + t < context_len, h, t, d)
    target = PROGRAMS
    for layer in tl.range(0, num_layers, num_stages=1):
        has_next = layer + 1 < num_layers
        following = table_ptr + has_next * 10  # the next layer's addresses; of the last one its own
        block_table = block_tables_ptr + (layer % num_tables) * tables_stride_t

        # 1. Queries, keys and values. Addresses are read early: what lies there is asked for at once.
        out_addresses = linear_at(table_ptr, 3, x_ptr)
        norm_product(x_ptr, qkv, qkv_ptr, qkv_share, attention_eps, E, False, QKV_TILES, BLOCK_N, BLOCK_K)
        arrive(barrier_ptr)
        attention_out = load_linear(out_addresses, e_share, E, E_TILES, BLOCK_N, BLOCK_K)
        wait(barrier_ptr, target)

        # 2. Attention: a unit is a split of a head. Of a program's first one the tokens are there.
        in_addresses = norm_linear_at(table_ptr, 5, x_ptr, f32_ptr)
        if pid < UNITS:
            attend(
                pid, piece, qkv_ptr, pools, layout, block_table, partials, context_len, scale,
                H, D, SPLITS, BLOCK_T, BLOCK_D,
            )  # fmt: skip
        for turn in range(1, (UNITS + PROGRAMS - 1) // PROGRAMS):
            unit = pid + turn * PROGRAMS
            if unit < UNITS:
                begin = unit % SPLITS * BLOCK_T
                its_blocks = load_blocks(layout, block_table, begin, t)
                live = begin + t < context_len
                its_piece = load_tokens(pools, layout, its_blocks, begin, live, unit // SPLITS, t, d)
                attend(
                    unit, its_piece, qkv_ptr, pools, layout, block_table, partials, context_len, scale,
                    H, D, SPLITS, BLOCK_T, BLOCK_D,
                )  # fmt: skip
        arrive(barrier_ptr)
        mlp_in = load_norm_linear(in_addresses, inner_share, E, INNER_TILES, BLOCK_N, BLOCK_K)
        next_table = block_tables_ptr + (layer + has_next) % num_tables * tables_stride_t
        blocks = load_blocks(layout, next_table, start, t)
        wait(barrier_ptr, target + PROGRAMS)

        # 3. Attention's output, added to x: each program has read all that it needs of what x was.
        out_addresses = linear_at(table_ptr, 8, x_ptr)
        if SPLITS == 1:
            row = load_row(partial_ptr, E, BLOCK_N, BLOCK_K)
        else:
            row = load_attended(partials, H, D, SPLITS, BLOCK_N, BLOCK_K)
        add_product(row, attention_out, x_ptr, e_share, E_CHUNKS, E_TILES, BLOCK_N)
        arrive(barrier_ptr)
        mlp_out = load_linear(out_addresses, e_share, INNER, E_TILES, BLOCK_N, BLOCK_K)
        wait(barrier_ptr, target + 2 * PROGRAMS)

        # 4. Into the MLP.
        qkv_addresses = norm_linear_at(following, 0, x_ptr, f32_ptr)
        norm_product(x_ptr, mlp_in, inner_ptr, inner_share, mlp_eps, E, True, INNER_TILES, BLOCK_N, BLOCK_K)
        arrive(barrier_ptr)
        qkv = load_norm_linear(qkv_addresses, qkv_share, E, QKV_TILES, BLOCK_N, BLOCK_K)
        wait(barrier_ptr, target + 3 * PROGRAMS)

        # 5. Out of the MLP, added to x.
        inner = load_row(inner_ptr, INNER, BLOCK_N, BLOCK_K)
        add_product(inner, mlp_out, x_ptr, e_share, INNER_CHUNKS, E_TILES, BLOCK_N)
        k_cache_ptr += has_next * cache_stride_l
        v_cache_ptr += has_next * cache_stride_l
        pools = k_cache_ptr, v_cache_ptr
        if has_next:
            arrive(barrier_ptr)
        piece = load_tokens(pools, layout, blocks, start, start + t < context_len, h, t, d)
        if has_next:
            wait(barrier_ptr, target + 4 * PROGRAMS)
        table_ptr = following
        target += 5 * PROGRAMS
    leave(barrier_ptr, target - PROGRAMS)


# --- what both forms rely on ----------------------------------------------------------------------------


def check_decode_layers(
    x: Tensor,
    table: LayerTable,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    slot_mapping: Tensor,
) -> None:
    """Raises ValueError naming the first argument whose shape, stride, dtype or device does not fit."""
    weight = table.layers[0].qkv.weight
    E, L = weight.shape[1], len(table.layers)
    check_tensor("x", x, shape=(1, E), dtype=weight.dtype, device=weight.device, is_contiguous=True)
    if x.dtype not in FLOATS:
        raise ValueError(f"x is {x.dtype}, expected one of {', '.join(map(str, FLOATS))}")
    kept = k_cache.dtype if is_eight_bit(k_cache) else x.dtype
    like_cache = {"dtype": kept, "device": x.device, "last_stride_is_1": True}
    check_tensor("k_cache", k_cache, shape=(L, "N", "H", "block_size", "D"), **like_cache)
    check_tensor("v_cache", v_cache, shape=tuple(k_cache.shape), **like_cache)
    if v_cache.stride() != k_cache.stride():
        raise ValueError(f"v_cache has strides {v_cache.stride()}, k_cache {k_cache.stride()}")
    H, D = k_cache.shape[2], k_cache.shape[4]
    check_caches(k_cache[0], v_cache[0], H, x[:, :D], takes_eight_bit=True)
    if H * D != E:
        raise ValueError(f"k_cache has {H} heads of {D}, but x has {E} columns")
    integers = {"device": x.device, "last_stride_is_1": True}
    check_tensor("block_tables", block_tables, shape=("T", "S", "M"), dtype=torch.int32, **integers)
    S = block_tables.shape[1]
    check_tensor("context_lens", context_lens, shape=(S,), dtype=torch.int32, **integers)
    check_tensor("slot_mapping", slot_mapping, shape=(1,), dtype=torch.int64, **integers)
    check_range("slot_mapping", slot_mapping, S)
