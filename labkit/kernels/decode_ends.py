"""How a decode step begins and ends on the device: slots to embeddings, logits to tokens and back to slots.

B requests, S slots, E embedding, V vocabulary, P positions. A context length below 0 marks a padding slot,
which fills up a batch: it is read as position 0, and its length never changes.
"""

import torch
from torch import Tensor

from labkit.kernels.checks import check_range, check_tensor
from labkit.kernels.fused_linear import RowStatistics, row_statistics
from labkit.kernels.triton_runtime import check_launchable, early_launch, tl, triton

LOGITS_PER_PROGRAM = 4096
NO_TOKEN = -1  # the token id of a row whose logits are not finite numbers

# --- slots to embeddings --------------------------------------------------------------------------------


def embed_slots_plain(
    slot_mapping: Tensor,  # [B] int64
    last_token_ids: Tensor,  # [S] int64
    context_lens: Tensor,  # [S] int32
    token_table: Tensor,  # [V, E]
    position_table: Tensor | None,  # [P, E]
) -> tuple[Tensor, RowStatistics]:  # [B, E]
    """The sum of each request's token and position embedding, and its row statistics for the first norm.
    Without a table of positions it is the token's alone.

    Plain PyTorch: the oracle of `embed_slots_triton`. Raises ValueError for arguments that do not fit.
    """
    check_embed_slots(slot_mapping, last_token_ids, context_lens, token_table, position_table)
    x = token_table[last_token_ids[slot_mapping]]
    if position_table is not None:
        x = x + position_table[context_lens[slot_mapping].clamp(min=0)]
    return x, row_statistics(x, x.shape[1])


def embed_slots_triton(
    slot_mapping: Tensor,
    last_token_ids: Tensor,
    context_lens: Tensor,
    token_table: Tensor,
    position_table: Tensor | None,
) -> tuple[Tensor, RowStatistics]:
    """Each request's token plus position embedding [B, E], if there are any of positions, and its row
    statistics, in one kernel: one program per request.

    Takes and raises what `embed_slots_plain` does, and TritonUnavailableError where no kernel runs.
    """
    tensors = slot_mapping, last_token_ids, context_lens, token_table, position_table
    check_embed_slots(*tensors)
    check_launchable(slot_mapping.device)
    B, E = len(slot_mapping), token_table.shape[1]
    x = torch.empty(B, E, dtype=token_table.dtype, device=token_table.device)
    statistics = torch.empty(B, 1, 2, dtype=torch.float32, device=token_table.device)
    is_early = early_launch(token_table.device)["EARLY"]  # and no `launch_pdl`: see the kernel
    _embed_slots_kernel[(B,)](*tensors, x, statistics, E, BLOCK_E=triton.next_power_of_2(E), EARLY=is_early)
    return x, RowStatistics(statistics, E)


@triton.jit
def _embed_slots_kernel(
    slot_mapping_ptr, last_token_ids_ptr, context_lens_ptr, token_table_ptr, position_table_ptr, x_ptr,
    statistics_ptr,
    E,
    BLOCK_E: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)  # in a long chunk, b * E passes 2^31
    e = tl.arange(0, BLOCK_E)
    # The kernels behind start each other at once and read slots, tables and cache before they wait, each for
    # the one in front of it alone. So this one, the first of a step, is launched in order and need not wait:
    # what PyTorch's kernels wrote there before it is complete. In a graph nothing is before it anyway.
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    slot = tl.load(slot_mapping_ptr + b)
    token_id = tl.load(last_token_ids_ptr + slot)
    position = tl.maximum(tl.load(context_lens_ptr + slot), 0)
    x = tl.load(token_table_ptr + token_id * E + e, mask=e < E, other=0.0)
    if position_table_ptr is not None:
        place = tl.load(position_table_ptr + position.to(tl.int64) * E + e, mask=e < E, other=0.0)
        x = (x.to(tl.float32) + place.to(tl.float32)).to(x_ptr.dtype.element_ty)
    tl.store(x_ptr + b * E + e, x, mask=e < E)
    stored = x.to(tl.float32)
    mean = tl.sum(stored, axis=0) / E
    apart = tl.where(e < E, stored - mean, 0.0)
    tl.store(statistics_ptr + b * 2, mean)
    tl.store(statistics_ptr + b * 2 + 1, tl.sum(apart * apart, axis=0))


# --- logits to tokens and slots -------------------------------------------------------------------------


def greedy_advance_plain(
    logits: Tensor,  # [B, V]
    slot_mapping: Tensor,  # [B] int64
    last_token_ids: Tensor,  # [S] int64
    context_lens: Tensor,  # [S] int32
) -> Tensor:  # [B] int64
    """The likeliest token of each row, or NO_TOKEN if its logits are not finite.

    Changes the slots in place: the token becomes the last one (0 for NO_TOKEN), and the context length grows
    by 1, except in padding slots. Plain PyTorch: the oracle of `greedy_advance_triton`. Raises ValueError for
    arguments that do not fit.
    """
    check_greedy_advance(logits, slot_mapping, last_token_ids, context_lens)
    largest, token_ids = logits.max(dim=-1)  # NaN and inf, if any, are the row's maximum
    token_ids = token_ids.masked_fill(~largest.isfinite(), NO_TOKEN)
    last_token_ids[slot_mapping] = token_ids.clamp(min=0)
    lens = context_lens[slot_mapping]
    context_lens[slot_mapping] = torch.where(lens < 0, lens, lens + 1)
    return token_ids


def greedy_advance_triton(
    logits: Tensor, slot_mapping: Tensor, last_token_ids: Tensor, context_lens: Tensor
) -> Tensor:
    """The likeliest token of each row [B] int64, or NO_TOKEN, with the slots advanced by it in place, in two
    kernels: the best of each piece of a row, then the best of the pieces.

    Takes and raises what `greedy_advance_plain` does, and TritonUnavailableError where no kernel runs.
    """
    check_greedy_advance(logits, slot_mapping, last_token_ids, context_lens)
    check_launchable(logits.device)
    B, V = logits.shape
    num_pieces = triton.cdiv(V, LOGITS_PER_PROGRAM)
    best = torch.empty(B, num_pieces, dtype=torch.float32, device=logits.device)
    best_ids = torch.empty(B, num_pieces, dtype=torch.int32, device=logits.device)
    token_ids = torch.empty(B, dtype=torch.int64, device=logits.device)
    _best_of_pieces_kernel[(num_pieces, B)](
        logits, best, best_ids, V, logits.stride(0), BLOCK=LOGITS_PER_PROGRAM, **early_launch(logits.device)
    )
    pieces, slots = (best, best_ids), (slot_mapping, last_token_ids, context_lens)
    block = triton.next_power_of_2(num_pieces)
    _choose_and_advance_kernel[(B,)](
        *pieces, token_ids, *slots, num_pieces, BLOCK=block, num_warps=1, **early_launch(logits.device)
    )
    return token_ids


@triton.jit
def _best_of_pieces_kernel(
    logits_ptr, best_ptr, best_ids_ptr, V, logits_stride_b, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    """A piece with a NaN or an infinity in it has infinity as its best."""
    piece = tl.program_id(0)
    b = tl.program_id(1).to(tl.int64)
    v = piece * BLOCK + tl.arange(0, BLOCK)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    logits = tl.load(logits_ptr + b * logits_stride_b + v, mask=v < V, other=float("-inf")).to(tl.float32)
    logits = tl.where(logits != logits, float("inf"), logits)
    best, place = tl.max(logits, axis=0, return_indices=True)  # the first of equals
    tl.store(best_ptr + b * tl.num_programs(0) + piece, best)
    tl.store(best_ids_ptr + b * tl.num_programs(0) + piece, piece * BLOCK + place)


@triton.jit
def _choose_and_advance_kernel(
    best_ptr, best_ids_ptr, token_ids_ptr, slot_mapping_ptr, last_token_ids_ptr, context_lens_ptr,
    num_pieces,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    piece = tl.arange(0, BLOCK)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    all_best = tl.load(best_ptr + b * num_pieces + piece, mask=piece < num_pieces, other=float("-inf"))
    best, place = tl.max(all_best, axis=0, return_indices=True)
    token_id = tl.load(best_ids_ptr + b * num_pieces + place).to(tl.int64)
    is_finite = (best < float("inf")) & (best > float("-inf"))
    slot = tl.load(slot_mapping_ptr + b)
    context_len = tl.load(context_lens_ptr + slot)
    tl.store(token_ids_ptr + b, tl.where(is_finite, token_id, -1))
    tl.store(last_token_ids_ptr + slot, tl.where(is_finite, token_id, 0))
    if context_len >= 0:
        tl.store(context_lens_ptr + slot, context_len + 1)


# --- contracts ------------------------------------------------------------------------------------------


def check_embed_slots(
    slot_mapping: Tensor,
    last_token_ids: Tensor,
    context_lens: Tensor,
    token_table: Tensor,
    position_table: Tensor | None,
) -> None:
    """Raises ValueError naming the first argument whose shape, stride, dtype or device does not fit."""
    check_slots(slot_mapping, last_token_ids, context_lens)
    table = {"dtype": token_table.dtype, "device": slot_mapping.device, "is_contiguous": True}
    check_tensor("token_table", token_table, shape=("V", "E"), **table)
    if position_table is not None:
        check_tensor("position_table", position_table, shape=("P", token_table.shape[1]), **table)
    check_range("last_token_ids", last_token_ids, len(token_table))


def check_greedy_advance(
    logits: Tensor, slot_mapping: Tensor, last_token_ids: Tensor, context_lens: Tensor
) -> None:
    """Raises ValueError naming the first argument whose shape, stride, dtype or device does not fit."""
    check_slots(slot_mapping, last_token_ids, context_lens)
    check_tensor(
        "logits", logits, shape=(len(slot_mapping), "V"), device=slot_mapping.device, last_stride_is_1=True
    )


def check_slots(slot_mapping: Tensor, last_token_ids: Tensor, context_lens: Tensor) -> None:
    """Raises ValueError unless these are int64 [B], int64 [S] and int32 [S] on one device, each
    contiguous."""
    integers = {"device": slot_mapping.device, "last_stride_is_1": True}
    check_tensor("slot_mapping", slot_mapping, shape=("B",), dtype=torch.int64, **integers)
    check_tensor("last_token_ids", last_token_ids, shape=("S",), dtype=torch.int64, **integers)
    check_tensor("context_lens", context_lens, shape=last_token_ids.shape, dtype=torch.int32, **integers)
    check_range("slot_mapping", slot_mapping, len(last_token_ids))
