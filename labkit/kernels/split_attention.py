"""Attention that stores the new token, split: several programs per request and head, each with its share of
the tokens.

B requests, S slots, H heads, G heads of keys and values, D head size. Groups of heads that share a key take
the kernel of `grouped_attention`. `paged_attention_append` has the form in one program, and the plain one.
"""

import torch
from torch import Tensor

from labkit.kernels.grouped_attention import NARROW, group_programs, launch_grouped, strides_of
from labkit.kernels.head_transform import HeadTransform
from labkit.kernels.paged_attention_append import check_paged_attention_append
from labkit.kernels.running_softmax import add_piece, load_piece, merge_parts, put_together
from labkit.kernels.triton_runtime import check_launchable, early_launch, tl, triton

# Tokens that a program, which is one warp, reads at a time, and how many such programs an H100 runs at once
# (8 on each of its 132 multiprocessors, limited by their registers). One program more would start only when
# another has ended, and the whole launch would wait for it. Wider rows than those of a key of 64 in half
# precision are read fewer at a time: a thread would not have registers enough.
TOKENS_AT_A_TIME = 32
BYTES_AT_A_TIME = TOKENS_AT_A_TIME * 64 * 2
PROGRAMS_AT_ONCE = NARROW.at_once
MAX_SPLITS = 16


class SplitWorkspace:
    """What programs that share a row's tokens leave for each other: partial results, and how many have
    arrived.

    For calls in one stream that follow each other; made once, so that a CUDA graph can hold its address.
    """

    def __init__(
        self,
        max_batch_size: int,
        num_heads: int,
        head_dim: int,
        device: torch.device,
        num_parts: int | None = None,
    ) -> None:
        """num_heads: of queries. num_parts: of all rows; by default MAX_SPLITS of each."""
        parts, float32 = (num_parts or max_batch_size * MAX_SPLITS, num_heads), torch.float32
        self.partial_out = torch.empty(*parts, head_dim, dtype=float32, device=device)
        self.partial_softmax = torch.empty(*parts, 2, dtype=float32, device=device)  # largest and total
        self.arrived = torch.zeros(max_batch_size, num_heads, dtype=torch.int32, device=device)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """All of it, as kernels take it."""
        return self.partial_out, self.partial_softmax, self.arrived

    def check(self, query: Tensor, num_parts: int) -> None:
        """Raises ValueError if it is elsewhere, for other heads, or too small for num_parts parts of query
        [B, H, D]."""
        B, H, D = query.shape
        if self.arrived.device != query.device:
            raise ValueError(f"workspace is on {self.arrived.device}, expected {query.device}")
        heads = tuple(self.partial_out.shape[1:])
        if heads != (H, D):
            raise ValueError(f"workspace is for {heads[0]} heads of {heads[1]}, expected {H} of {D}")
        if len(self.arrived) < B:
            raise ValueError(f"workspace is for {len(self.arrived)} rows, but there are {B}")
        if len(self.partial_out) < num_parts:
            raise ValueError(f"workspace is for {len(self.partial_out)} parts, but there may be {num_parts}")


def num_splits(batch_size: int, num_heads: int, max_tokens: int, num_warps: int = 1) -> int:
    """Programs per request and head of keys, 1 to MAX_SPLITS: as many as run at once, and no more than there
    are pieces in the longest sequence of `max_tokens` tokens."""
    at_once = PROGRAMS_AT_ONCE // num_warps // (batch_size * num_heads)
    return max(1, min(at_once, MAX_SPLITS, -(-max_tokens // (num_warps * TOKENS_AT_A_TIME))))


def tokens_at_a_time(num_programs: int, row_bytes: int) -> int:
    """Tokens that a program of the split form reads at a time, a key being `row_bytes` long.

    Where not all of num_programs run at once it is half as many, so that twice as many programs run.
    """
    tokens = min(TOKENS_AT_A_TIME, max(2, BYTES_AT_A_TIME // row_bytes))
    return tokens if num_programs <= PROGRAMS_AT_ONCE else tokens // 2


def paged_attention_append_split_triton(
    query: Tensor,
    key_new: Tensor,
    value_new: Tensor,
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    slot_mapping: Tensor,
    workspace: SplitWorkspace,
    splits: int,
    transform: HeadTransform | None = None,
    piece: int | None = None,
) -> Tensor:
    """Attend and store the new token's key and value with `splits` programs per request and head of keys,
    each over its share of the tokens (Flash-Decoding, Dao et al., 2023).

    The last program to arrive puts the shares together, always in the same order: the same arguments give the
    same bits. Tensors are those of a `PagedAttentionAppend`. piece: tokens that a program reads at a time; by
    default as many as suit the GPU. Raises ValueError for arguments that do not fit or a workspace that is
    too small, and TritonUnavailableError where no kernel runs.
    """
    tensors = query, key_new, value_new, k_cache_layer, v_cache_layer
    arguments = *tensors, block_table, context_lens, slot_mapping
    check_paged_attention_append(*arguments, transform=transform)
    check_launchable(query.device)
    B, H, D = query.shape
    G = key_new.shape[1]
    if not 1 <= splits <= MAX_SPLITS:
        raise ValueError(f"splits is {splits}, expected 1 to {MAX_SPLITS}")
    workspace.check(query, B * splits)
    partials = workspace.tensors
    block_d = triton.next_power_of_2(D)
    tokens = piece or tokens_at_a_time(B * G * splits, block_d * query.element_size())
    try:
        if G < H or transform is not None:
            programs = group_programs(B, H, G, query.dtype)
            tokens *= programs.num_warps
            return launch_grouped(*arguments, partials, transform, tokens, splits, programs=programs)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        strides = strides_of(query, key_new, value_new, k_cache_layer, block_table, out)
        sizes = D, k_cache_layer.shape[2], block_table.shape[1]
        blocks = {"BLOCK_S": triton.next_power_of_2(splits), "BLOCK_T": tokens, "BLOCK_D": block_d}
        options = early_launch(query.device) | {"num_warps": 1}
        _split_paged_attn_append_kernel[(splits, H, B)](
            *arguments, *partials, out, D**-0.5, *strides, *sizes, SPLITS=splits, **blocks, **options
        )
    except BaseException:  # the interpreter, stopped between two programs of a row
        workspace.arrived.zero_()
        raise
    return out


@triton.jit
def _split_paged_attn_append_kernel(
    query_ptr, key_new_ptr, value_new_ptr, k_cache_ptr, v_cache_ptr, block_table_ptr, context_lens_ptr,
    slot_mapping_ptr, partial_out_ptr, partial_softmax_ptr, arrived_ptr, out_ptr,
    scale,
    query_stride_b, query_stride_h, key_stride_b, key_stride_h, value_stride_b, value_stride_h,
    cache_stride_n, cache_stride_h, cache_stride_t, table_stride_s, out_stride_b, out_stride_h,
    D, block_size, table_size,
    SPLITS: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """A program takes every SPLITS-th piece of BLOCK_T tokens, so that all have live tokens early on."""
    split = tl.program_id(0)
    h = tl.program_id(1)
    b = tl.program_id(2)
    H = tl.num_programs(1)
    t = tl.arange(0, BLOCK_T)
    d = tl.arange(0, BLOCK_D)
    in_head = d < D
    slot = tl.load(slot_mapping_ptr + b)
    context_len = tl.load(context_lens_ptr + slot)
    table_ptr = block_table_ptr + slot * table_stride_s
    first = split * BLOCK_T
    # The first piece is asked for before the kernel before this one has ended, which does not write it, and
    # each other one before its turn.
    pools = k_cache_ptr, v_cache_ptr
    layout = cache_stride_n, cache_stride_h, cache_stride_t, block_size, D, table_size
    piece = load_piece(pools, layout, table_ptr, first, context_len, h, t, d)
    if EARLY:  # the slots do not change within a step; query, key and value come from the kernel before
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    query = tl.load(query_ptr + b * query_stride_b + h * query_stride_h + d, mask=in_head, other=0.0)
    query = query.to(tl.float32) * scale
    key = tl.load(key_new_ptr + b * key_stride_b + h * key_stride_h + d, mask=in_head, other=0.0)
    value = tl.load(value_new_ptr + b * value_stride_b + h * value_stride_h + d, mask=in_head, other=0.0)
    own_score = tl.sum(query * key.to(tl.float32), axis=0)
    if (split == 0) & (context_len >= 0):
        block = tl.load(table_ptr + context_len // block_size).to(tl.int64)
        place = block * cache_stride_n + h * cache_stride_h + (context_len % block_size) * cache_stride_t + d
        tl.store(k_cache_ptr + place, key, mask=in_head)
        tl.store(v_cache_ptr + place, value, mask=in_head)

    # Each of the BLOCK_T places has a softmax of its own, so that no program waits for its other threads
    # in the loop; they are put together once, after it. All begin at the current token's score.
    total, acc = tl.zeros([BLOCK_T], tl.float32), tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    softmax = total + own_score, total, acc
    step = SPLITS * BLOCK_T
    for start in range(first, context_len, step):
        softmax = add_piece(query, piece, start + t < context_len, softmax, key_new_ptr.dtype.element_ty)
        piece = load_piece(pools, layout, table_ptr, start + step, context_len, h, t, d)
    all_largest, sum_total, sum_acc = put_together(softmax, own_score, value, split == 0)

    out_place = out_ptr + b * out_stride_b + h * out_stride_h + d
    if SPLITS == 1:
        tl.store(out_place, (sum_acc / sum_total).to(out_ptr.dtype.element_ty), mask=in_head)
    else:
        row = (b * H + h) * SPLITS
        tl.store(partial_out_ptr + (row + split) * D + d, sum_acc, mask=in_head)
        tl.store(partial_softmax_ptr + (row + split) * 2, all_largest)
        tl.store(partial_softmax_ptr + (row + split) * 2 + 1, sum_total)
        tl.debug_barrier()  # all of this program's stores come before it says that it has arrived
        if tl.atomic_add(arrived_ptr + b * H + h, 1, sem="acq_rel") == SPLITS - 1:
            s = tl.arange(0, BLOCK_S)
            out = merge_parts(row + s, s < SPLITS, partial_out_ptr, partial_softmax_ptr, d, in_head, D)
            tl.store(out_place, out.to(out_ptr.dtype.element_ty), mask=in_head)
            tl.store(arrived_ptr + b * H + h, 0)  # for the next call
