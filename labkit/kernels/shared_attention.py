"""Attention of one new token in the shares of a plan, which `attention_shares` makes once a step.

B requests, S slots, H heads, G heads of keys and values, D head size. A share is a run of a row's tokens, for
all heads. Groups of heads that share a key, and keys that come in boxes, take the kernel of
`grouped_attention`.
"""

import torch
from torch import Tensor

from labkit.kernels.attention_shares import MANY_HEADS, MAX_SHARES, SharePlan
from labkit.kernels.eight_bit import can_be_read, dequantized, quantized, store_scales
from labkit.kernels.grouped_attention import NARROW, launch_grouped, strides_of
from labkit.kernels.head_transform import HeadTransform
from labkit.kernels.paged_attention_append import check_paged_attention_append
from labkit.kernels.running_softmax import add_piece, load_piece, merge_parts, put_together
from labkit.kernels.split_attention import SplitWorkspace
from labkit.kernels.triton_runtime import check_launchable, early_launch, tl, triton


def paged_attention_append_shares_triton(
    query: Tensor,
    key_new: Tensor,
    value_new: Tensor,
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    slot_mapping: Tensor,
    workspace: SplitWorkspace,
    plan: SharePlan,
    transform: HeadTransform | None = None,
) -> Tensor:
    """Attend and store the new token's key and value with a program for each share of the plan and head. The
    plan was made for these lengths and slots, and the workspace for as many parts as the plan has shares.

    The last program of a row to arrive puts its shares together, always in the same order: the same arguments
    give the same bits. Tensors are those of a `PagedAttentionAppend`. Raises ValueError for arguments that do
    not fit, a workspace that is too small or a plan for another batch, and TritonUnavailableError where no
    kernel runs.
    """
    tensors = query, key_new, value_new, k_cache_layer, v_cache_layer
    arguments = *tensors, block_table, context_lens, slot_mapping
    check_paged_attention_append(*arguments, transform=transform, takes_eight_bit=True)
    if not can_be_read(k_cache_layer.dtype, query.shape[-1]):
        raise ValueError(f"query has heads of {query.shape[-1]} values; in 8 bits they are read by fours")
    check_launchable(query.device)
    B, H, D = query.shape
    G = key_new.shape[1]
    if plan.num_heads != G or plan.batch_size != B:
        raise ValueError(
            f"plan was made for {plan.batch_size} rows of {plan.num_heads} heads, but there are {B} of {G}"
        )
    _, most = plan.limits(B)
    workspace.check(query, most)
    partials = workspace.tensors
    reading = plan.reading(B)
    try:
        if G < H or transform is not None or reading.is_boxed:
            parts = reading.tokens, 1, plan.tensors, most, reading.programs
            return launch_grouped(*arguments, partials, transform, *parts)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        is_16_bit = k_cache_layer.element_size() == 2
        _shared_paged_attn_append_kernel[(H, most)](
            *arguments[:-1],
            *plan.tensors,
            *partials,
            out,
            D**-0.5,
            *strides_of(query, key_new, value_new, k_cache_layer, block_table, out),
            D,
            k_cache_layer.shape[2],
            block_table.shape[1],
            BLOCK_S=MAX_SHARES,
            BLOCK_T=reading.tokens,
            BLOCK_D=triton.next_power_of_2(D),
            LAST="behind" if is_16_bit else "in line",
            NEXT="at once" if B * H < MANY_HEADS else "before the wait",
            num_warps=NARROW.num_warps,
            maxnreg=NARROW.num_registers if is_16_bit else None,  # of larger ones fewer would run at once
            **early_launch(query.device),
        )
    except BaseException:  # the interpreter, stopped between two programs of a row
        workspace.arrived.zero_()
        raise
    return out


@triton.jit
def _shared_paged_attn_append_kernel(
    query_ptr, key_new_ptr, value_new_ptr, k_cache_ptr, v_cache_ptr, block_table_ptr, context_lens_ptr,
    row_of_ptr, slot_of_ptr, first_of_ptr, end_of_ptr, first_share_ptr, num_shares_ptr, partial_out_ptr,
    partial_softmax_ptr, arrived_ptr, out_ptr,
    scale,
    query_stride_b, query_stride_h, key_stride_b, key_stride_h, value_stride_b, value_stride_h,
    cache_stride_n, cache_stride_h, cache_stride_t, table_stride_s, out_stride_b, out_stride_h,
    D, block_size, table_size,
    BLOCK_S: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, LAST: tl.constexpr,
    NEXT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A program takes a share of a row's tokens, for one head, in pieces of BLOCK_T: the arithmetic of
    `_split_paged_attn_append_kernel`. With LAST "behind" the last one has its turn behind the loop, so that
    none is asked for that is not there: on an H200 faster in 16 bits. NEXT: when the next kernel may begin.
    Programs without a share come last, and leave."""
    if EARLY and NEXT == "at once":
        tl.extra.cuda.gdc_launch_dependents()
    h = tl.program_id(0)
    w = tl.program_id(1)
    H = tl.num_programs(0)
    t = tl.arange(0, BLOCK_T)
    d = tl.arange(0, BLOCK_D)
    in_head = d < D
    # Plan, slots, tables and what is in the cache do not change within a step: all are read before the wait.
    b = tl.load(row_of_ptr + w)
    slot = tl.load(slot_of_ptr + w)
    first = tl.load(first_of_ptr + w)
    end = tl.load(end_of_ptr + w)
    if b >= 0:
        context_len = tl.load(context_lens_ptr + slot)
        num_shares = tl.load(num_shares_ptr + b)
        table_ptr = block_table_ptr + slot.to(tl.int64) * table_stride_s
        pools = k_cache_ptr, v_cache_ptr
        layout = cache_stride_n, cache_stride_h, cache_stride_t, block_size, D, table_size
        piece = load_piece(pools, layout, table_ptr, first, end, h, t, d)
        if EARLY:  # query, key and value come from the kernel before
            if NEXT == "before the wait":
                tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()
        query = tl.load(query_ptr + b * query_stride_b + h * query_stride_h + d, mask=in_head, other=0.0)
        query = query.to(tl.float32) * scale
        key = tl.load(key_new_ptr + b * key_stride_b + h * key_stride_h + d, mask=in_head, other=0.0)
        value = tl.load(value_new_ptr + b * value_stride_b + h * value_stride_h + d, mask=in_head, other=0.0)
        kept_key, key_scale = quantized(key, k_cache_ptr)
        kept_value, value_scale = quantized(value, v_cache_ptr)
        if (first == 0) & (context_len >= 0):
            block = tl.load(table_ptr + context_len // block_size).to(tl.int64)
            head = block * cache_stride_n + h * cache_stride_h
            pos = context_len % block_size
            row = head + pos * cache_stride_t + d
            tl.store(k_cache_ptr + row, kept_key, mask=in_head)
            tl.store(v_cache_ptr + row, kept_value, mask=in_head)
            store_scales(k_cache_ptr, head, pos, key_scale, None, block_size, D)
            store_scales(v_cache_ptr, head, pos, value_scale, None, block_size, D)
        # The token sees itself as all later ones will.
        key = dequantized(kept_key, key_scale, tl.float32)
        value = dequantized(kept_value, value_scale, tl.float32)
        own_score = tl.sum(query * key.to(tl.float32), axis=0)

        # A softmax for each of the BLOCK_T places, all from the current token's score on.
        total, acc = tl.zeros([BLOCK_T], tl.float32), tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
        softmax = total + own_score, total, acc
        kept: tl.constexpr = k_cache_ptr.dtype.element_ty
        stop = end
        if LAST == "behind":
            stop = first + tl.maximum(end - first - 1, 0) // BLOCK_T * BLOCK_T
        for start in range(first, stop, BLOCK_T):
            live = t < BLOCK_T if LAST == "behind" else start + t < end
            softmax = add_piece(query, piece, live, softmax, kept)
            piece = load_piece(pools, layout, table_ptr, start + BLOCK_T, end, h, t, d)
        if LAST == "behind":
            softmax = add_piece(query, piece, stop + t < end, softmax, kept)
        all_largest, sum_total, sum_acc = put_together(softmax, own_score, value, first == 0)

        out_place = out_ptr + b * out_stride_b + h * out_stride_h + d
        if num_shares == 1:
            tl.store(out_place, (sum_acc / sum_total).to(out_ptr.dtype.element_ty), mask=in_head)
        else:
            part = w * H + h
            tl.store(partial_out_ptr + part * D + d, sum_acc, mask=in_head)
            tl.store(partial_softmax_ptr + part * 2, all_largest)
            tl.store(partial_softmax_ptr + part * 2 + 1, sum_total)
            tl.debug_barrier()  # all of this program's stores come before it says that it has arrived
            if tl.atomic_add(arrived_ptr + b * H + h, 1, sem="acq_rel") == num_shares - 1:
                s = tl.arange(0, BLOCK_S)
                out = merge_parts(
                    (tl.load(first_share_ptr + b) + s) * H + h,
                    s < num_shares,
                    partial_out_ptr,
                    partial_softmax_ptr,
                    d,
                    in_head,
                    D,
                )
                tl.store(out_place, out.to(out_ptr.dtype.element_ty), mask=in_head)
                tl.store(arrived_ptr + b * H + h, 0)  # for the next call
