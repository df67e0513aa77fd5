"""What surrounds the forward of a step that verifies drafts: which rows it has, which drafts are accepted,
and where that leaves the slots.

B requests, K drafts of each at most, R = B * (K + 1) rows, S slots, W tokens of a slot's text at most. A
context length below 0 marks a padding slot, which has no row. Neither has a request that is done: one with
ends[b] tokens in the cache.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.kernels.checks import check_range, check_tensor
from labkit.kernels.ngram_drafts import NO_DRAFT
from labkit.kernels.triton_runtime import check_launchable, tl, triton

NOT_MADE = -2  # behind the tokens that a request has made


class VerifyRows(NamedTuple):
    """The rows of a step: each request's last token and its drafts behind each other, and then pads.

    place: [B, K + 1], which row a request's token j is in. token_ids, positions, requests, ranks: [R] int64,
    of each row, with the request's place in the batch and j; 0 for pads. starts: [B + 1] int32, as in
    `PackedRows`. context_lens: [B] int32, 0 for who has no row. drafts: [B, K], those that are in rows.
    """

    place: Tensor
    token_ids: Tensor
    positions: Tensor
    requests: Tensor
    ranks: Tensor
    starts: Tensor
    context_lens: Tensor
    drafts: Tensor


# --- rows ------------------------------------------------------------------------------------------------


def verify_rows_plain(
    drafts: Tensor,  # [B, K] int64, NO_DRAFT behind a request's
    slot_mapping: Tensor,  # [B] int64
    last_token_ids: Tensor,  # [S] int64
    context_lens: Tensor,  # [S] int32
    ends: Tensor,  # [B] int64
) -> VerifyRows:
    """The rows that verify these drafts, of which none reaches beyond its request's end.

    Plain PyTorch: the oracle of `verify_rows_triton`. Raises ValueError for arguments that do not fit.
    """
    check_rows(drafts, slot_mapping, last_token_ids, context_lens, ends)
    lens = context_lens[slot_mapping].long()
    has_rows = (lens >= 0) & (lens < ends)
    rank = torch.arange(drafts.shape[1] + 1, device=drafts.device).expand(len(drafts), -1)
    drafts = drafts.masked_fill(rank[:, 1:] >= (ends - lens)[:, None], NO_DRAFT)
    inputs = torch.cat([last_token_ids[slot_mapping][:, None], drafts], dim=1)
    is_row = (inputs >= 0) & has_rows[:, None]
    row_ends = is_row.sum(dim=1).cumsum(dim=0)
    starts = F.pad(row_ends, (1, 0))
    behind = row_ends[-1] + (~is_row).flatten().cumsum(dim=0).view_as(rank) - 1
    place = torch.where(is_row, starts[:-1, None] + rank, behind)
    request = torch.arange(len(inputs), device=inputs.device)[:, None].expand_as(inputs)

    def in_rows(column: Tensor) -> Tensor:
        """[B, K + 1] as [R], in the rows' order; 0 in pads."""
        return torch.zeros_like(place).flatten().scatter_(0, place.flatten(), (column * is_row).flatten())

    columns = (in_rows(column) for column in (inputs, lens[:, None] + rank, request, rank))
    lens = torch.where(has_rows, lens, 0)
    return VerifyRows(place, *columns, starts.int(), lens.int(), drafts.masked_fill(~is_row[:, 1:], NO_DRAFT))


def verify_rows_triton(
    drafts: Tensor, slot_mapping: Tensor, last_token_ids: Tensor, context_lens: Tensor, ends: Tensor
) -> VerifyRows:
    """The rows in one kernel of one program: there are few, and each one's place depends on all before it.

    Takes and raises what `verify_rows_plain` does, and TritonUnavailableError where no kernel runs.
    """
    slots = slot_mapping, last_token_ids, context_lens, ends
    check_rows(drafts, *slots)
    check_launchable(drafts.device)
    (B, K), device = drafts.shape, drafts.device
    place, kept = (torch.empty(B, n, dtype=torch.int64, device=device) for n in (K + 1, K))
    columns = torch.empty(4, B * (K + 1), dtype=torch.int64, device=device)
    starts, lens = (torch.empty(n, dtype=torch.int32, device=device) for n in (B + 1, B))
    blocks = {"BLOCK_B": triton.next_power_of_2(B), "BLOCK_J": triton.next_power_of_2(K + 1)}
    _verify_rows_kernel[(1,)](drafts, *slots, place, columns, starts, lens, kept, B, K, **blocks)
    return VerifyRows(place, *columns.unbind(), starts, lens, kept)


@triton.jit
def _verify_rows_kernel(
    drafts_ptr, slot_mapping_ptr, last_token_ids_ptr, context_lens_ptr, ends_ptr, place_ptr, columns_ptr,
    starts_ptr, lens_ptr, kept_ptr,
    B, K,
    BLOCK_B: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    b = tl.arange(0, BLOCK_B)
    j = tl.arange(0, BLOCK_J)[None, :]
    in_b = b < B
    slot = tl.load(slot_mapping_ptr + b, mask=in_b, other=0)
    length = tl.load(context_lens_ptr + slot, mask=in_b, other=-1).to(tl.int64)
    end = tl.load(ends_ptr + b, mask=in_b, other=0)
    last = tl.load(last_token_ids_ptr + slot, mask=in_b, other=0)
    has_rows = in_b & (length >= 0) & (length < end)
    is_draft = in_b[:, None] & (j >= 1) & (j <= K)
    draft = tl.load(drafts_ptr + b[:, None] * K + j - 1, mask=is_draft, other=-1)
    draft = tl.where(has_rows[:, None] & (j < (end - length)[:, None]), draft, -1)
    tl.store(kept_ptr + b[:, None] * K + j - 1, draft, mask=is_draft)
    token_id = tl.where(j == 0, last[:, None], draft)
    is_row = has_rows[:, None] & (j <= K) & (token_id >= 0)
    count = tl.sum(is_row.to(tl.int32), axis=1)
    row_end = tl.cumsum(count, axis=0)
    tl.store(starts_ptr + b + 1, row_end, mask=in_b)
    tl.store(starts_ptr + b, row_end - count, mask=b == 0)
    tl.store(lens_ptr + b, tl.where(has_rows, length, 0).to(tl.int32), mask=in_b)
    is_pad = in_b[:, None] & (j <= K) & (is_row == 0)
    behind = tl.cumsum(tl.reshape(is_pad.to(tl.int32), [BLOCK_B * BLOCK_J]), axis=0)
    behind = tl.sum(count, axis=0) + tl.reshape(behind, [BLOCK_B, BLOCK_J]) - 1
    place = tl.where(is_row, (row_end - count)[:, None] + j, behind)
    inside = is_row | is_pad
    tl.store(place_ptr + b[:, None] * (K + 1) + j, place.to(tl.int64), mask=inside)
    R = B * (K + 1)
    tl.store(columns_ptr + place, tl.where(is_row, token_id, 0), mask=inside)
    tl.store(columns_ptr + R + place, tl.where(is_row, length[:, None] + j, 0), mask=inside)
    tl.store(columns_ptr + 2 * R + place, tl.where(is_row, b[:, None], 0).to(tl.int64), mask=inside)
    tl.store(columns_ptr + 3 * R + place, tl.where(is_row, j, 0).to(tl.int64), mask=inside)


# --- which drafts are accepted ---------------------------------------------------------------------------


def accept_drafts_plain(
    made: Tensor,  # [B, K + 1] int64
    drafts: Tensor,  # [B, K] int64
) -> Tensor:
    """How many drafts [B] are accepted: those that were made, up to the first that was not.

    Plain PyTorch: the oracle of `accept_drafts_triton`. Raises ValueError for arguments that do not fit.
    """
    check_made(made, drafts)
    is_right = (made[:, :-1] == drafts) & (drafts >= 0)
    return is_right.long().cumprod(dim=1).sum(dim=1)


def accept_drafts_triton(made: Tensor, drafts: Tensor) -> Tensor:
    """How many drafts [B] are accepted, in one kernel: one program per request.

    Takes and raises what `accept_drafts_plain` does, and TritonUnavailableError where no kernel runs.
    """
    check_made(made, drafts)
    check_launchable(made.device)
    B, K = drafts.shape
    num_accepted = torch.empty(B, dtype=torch.int64, device=made.device)
    _accept_drafts_kernel[(B,)](made, drafts, num_accepted, K, BLOCK_J=triton.next_power_of_2(K), num_warps=1)
    return num_accepted


@triton.jit
def _accept_drafts_kernel(made_ptr, drafts_ptr, num_accepted_ptr, K, BLOCK_J: tl.constexpr):
    b = tl.program_id(0)
    j = tl.arange(0, BLOCK_J)
    draft = tl.load(drafts_ptr + b * K + j, mask=j < K, other=-1)
    made = tl.load(made_ptr + b * (K + 1) + j, mask=j < K, other=0)
    first_wrong = tl.min(tl.where((draft >= 0) & (made == draft), BLOCK_J, j), axis=0)
    tl.store(num_accepted_ptr + b, tl.minimum(first_wrong, K).to(tl.int64))


# --- where that leaves the slots -------------------------------------------------------------------------


def advance_verified_plain(
    made: Tensor,  # [B, K + 1] int64
    drafts: Tensor,  # [B, K] int64
    num_accepted: Tensor,  # [B] int64
    slot_mapping: Tensor,  # [B] int64
    ends: Tensor,  # [B] int64
    last_token_ids: Tensor,  # [S] int64
    context_lens: Tensor,  # [S] int32
    draws: Tensor,  # [S] int64
    texts: Tensor,  # [S, W] int32
) -> Tensor:  # [B, K + 2] int64
    """The tokens of each request: those of its accepted drafts and the one behind them, then NOT_MADE, and in
    the last column how many drafts it had.

    Changes the slots of who has rows, in place: length, last token (0 for one below 0), number of the next
    draw, and text, which gets all that was made, whether it is kept or not. Plain PyTorch: the oracle of
    `advance_verified_triton`. Raises ValueError for arguments that do not fit.
    """
    check_advance(made, drafts, num_accepted, slot_mapping, ends, last_token_ids, context_lens, draws, texts)
    lens = context_lens[slot_mapping].long()
    has_rows = (lens >= 0) & (lens < ends)
    rank = torch.arange(made.shape[1], device=made.device)
    live, num_made = slot_mapping[has_rows], (num_accepted + 1)[has_rows]
    last = made.gather(1, num_accepted[:, None])[:, 0].clamp(min=0)
    last_token_ids[live] = last[has_rows]
    context_lens[live] = (lens[has_rows] + num_made).int()
    draws[live] += num_made
    places = lens[has_rows][:, None] + 1 + rank
    texts[live[:, None], places] = made[has_rows].clamp(min=0).int()
    is_made = rank <= num_accepted[:, None]
    num_drafted = (drafts >= 0).sum(dim=1, keepdim=True)
    return torch.cat([made.masked_fill(~is_made, NOT_MADE), num_drafted], dim=1)


def advance_verified_triton(
    made: Tensor,
    drafts: Tensor,
    num_accepted: Tensor,
    slot_mapping: Tensor,
    ends: Tensor,
    last_token_ids: Tensor,
    context_lens: Tensor,
    draws: Tensor,
    texts: Tensor,
) -> Tensor:
    """The tokens of each request [B, K + 2], with the slots advanced in place, in one kernel: one program per
    request.

    Takes and raises what `advance_verified_plain` does, and TritonUnavailableError where no kernel runs.
    """
    tensors = made, drafts, num_accepted, slot_mapping, ends, last_token_ids, context_lens, draws, texts
    check_advance(*tensors)
    check_launchable(made.device)
    B, K = drafts.shape
    out = torch.empty(B, K + 2, dtype=torch.int64, device=made.device)
    block = triton.next_power_of_2(K + 1)
    _advance_verified_kernel[(B,)](*tensors, out, K, texts.stride(0), BLOCK_J=block, num_warps=1)
    return out


@triton.jit
def _advance_verified_kernel(
    made_ptr, drafts_ptr, num_accepted_ptr, slot_mapping_ptr, ends_ptr, last_token_ids_ptr, context_lens_ptr,
    draws_ptr, texts_ptr, out_ptr,
    K,
    texts_stride_s,
    BLOCK_J: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    j = tl.arange(0, BLOCK_J)
    made = tl.load(made_ptr + b * (K + 1) + j, mask=j <= K, other=0)
    draft = tl.load(drafts_ptr + b * K + j, mask=j < K, other=-1)
    num_accepted = tl.load(num_accepted_ptr + b)
    slot = tl.load(slot_mapping_ptr + b)
    length = tl.load(context_lens_ptr + slot)
    out = out_ptr + b * (K + 2)
    tl.store(out + j, tl.where(j <= num_accepted, made, -2), mask=j <= K)
    tl.store(out + K + 1, tl.sum((draft >= 0).to(tl.int64), axis=0))
    # A padding slot is several requests' own, and stays as it is.
    if (length >= 0) & (length < tl.load(ends_ptr + b)):
        last = tl.sum(tl.where(j == num_accepted, made, 0), axis=0)
        tl.store(last_token_ids_ptr + slot, tl.maximum(last, 0))
        tl.store(context_lens_ptr + slot, length + num_accepted.to(tl.int32) + 1)
        tl.store(draws_ptr + slot, tl.load(draws_ptr + slot) + num_accepted + 1)
        text = texts_ptr + slot * texts_stride_s + length + 1
        tl.store(text + j, tl.maximum(made, 0).to(tl.int32), mask=j <= K)


# --- contracts -------------------------------------------------------------------------------------------


def check_rows(
    drafts: Tensor, slot_mapping: Tensor, last_token_ids: Tensor, context_lens: Tensor, ends: Tensor
) -> None:
    """Raises ValueError naming the first argument whose shape, stride, dtype or device does not fit."""
    int64 = {"dtype": torch.int64, "device": drafts.device, "last_stride_is_1": True}
    check_tensor("drafts", drafts, shape=("B", "K"), is_contiguous=True, **int64)
    B = len(drafts)
    check_tensor("slot_mapping", slot_mapping, shape=(B,), **int64)
    check_tensor("last_token_ids", last_token_ids, shape=("S",), **int64)
    int32 = int64 | {"dtype": torch.int32}
    check_tensor("context_lens", context_lens, shape=last_token_ids.shape, **int32)
    check_tensor("ends", ends, shape=(B,), **int64)
    check_range("slot_mapping", slot_mapping, len(last_token_ids))


def check_made(made: Tensor, drafts: Tensor) -> None:
    """Raises ValueError unless these are int64 [B, K + 1] and [B, K] on one device, each contiguous."""
    rows = {"dtype": torch.int64, "device": drafts.device, "last_stride_is_1": True, "is_contiguous": True}
    check_tensor("drafts", drafts, shape=("B", "K"), **rows)
    B, K = drafts.shape
    check_tensor("made", made, shape=(B, K + 1), **rows)


def check_advance(*tensors: Tensor) -> None:
    """Raises ValueError naming the first argument whose shape, stride, dtype or device does not fit.

    tensors: those of `advance_verified_plain`, in its order."""
    made, drafts, num_accepted, slot_mapping, ends, last_token_ids, context_lens, draws, texts = tensors
    check_made(made, drafts)
    check_rows(drafts, slot_mapping, last_token_ids, context_lens, ends)
    int64 = {"dtype": torch.int64, "device": made.device, "last_stride_is_1": True}
    check_tensor("num_accepted", num_accepted, shape=(len(made),), **int64)
    check_tensor("draws", draws, shape=last_token_ids.shape, **int64)
    int32 = int64 | {"dtype": torch.int32}
    check_tensor("texts", texts, shape=(len(last_token_ids), "W"), **int32)
