"""The shares of about as many tokens each in which a batch is attended, however long its rows are.

The split form (`paged_attention_append_split_triton`) has as many programs for each row of a batch. If one
row is long and the others are short, they all wait for the programs of the long one. Here a plan, made on the
device once a step, gives a row as many programs as its tokens need; `shared_attention` attends by it.

B requests, S slots, H heads, D head size. A share is a run of a row's tokens, for all heads. Lengths are
counted in pieces, of as many tokens as a program reads at a time.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from labkit.kernels.checks import check_range, check_tensor
from labkit.kernels.grouped_attention import NARROW, Programs, are_boxed, group_programs
from labkit.kernels.split_attention import tokens_at_a_time
from labkit.kernels.triton_runtime import check_launchable, tl, triton

MAX_SHARES = 16  # of a row, which one program puts together: then its shares are as large as they must be
STEPS = 4  # in which a share's size is tried, from the fair one to twice as much


class Reading(NamedTuple):
    """How the programs of a launch read what is in the cache: measured on an H100, with boxes on an H200."""

    tokens: int  # of a piece
    programs: Programs
    is_boxed: bool = False


# Rows times heads from which programs are smaller, so that more run at once; and from and up to which boxes
# gain more. Of few rows a program has a piece or two, for which a box comes no sooner.
MANY_HEADS = NARROW.at_once // 4
LEAST_IN_BOXES, MOST_IN_BOXES = 576, 1152


def most_shares(batch_size: int, at_once: int) -> int:
    """The shares that a plan for so many rows may have: as many as at once, or half of that more than rows.

    There is always such a plan. A row of n pieces in shares of s has less than 1 + n / s of them. The fair
    size is the sum of all n over the shares at once, so with twice that size all n / s make half as many. And
    no row has over MAX_SHARES.
    """
    return min(max(at_once, batch_size + at_once // 2), batch_size * MAX_SHARES)


class SharePlan:
    """Which rows' tokens are in which share, on the device; made anew for each step by `plan_shares_triton`.

    The buffers are made once, so that a CUDA graph can hold their addresses. Of W shares:

    row_of: [W] int32, its row in the batch; -1 where there is no share. slot_of: [W] int32, the row's slot.
    first_of, end_of: [W] int32, its tokens, from the first one on and up to the end.

    And of the rows: first_share: [B] int32, num_shares: [B] int32, from 1 on.
    """

    def __init__(
        self,
        max_batch_size: int,
        num_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        group: int = 1,
        block_size: int = 1,
    ) -> None:
        """num_heads: of keys and values, each of which `group` queries share. dtype: of the cache, with
        blocks of block_size tokens."""
        self.num_heads, self._group, self._dtype = num_heads, group, dtype
        row_bytes = (1 << (head_dim - 1).bit_length()) * dtype.itemsize
        self._tokens = tokens_at_a_time(1, row_bytes)
        self._box_tokens = 2 * self._tokens if row_bytes <= 128 else self._tokens  # as registers have room
        self._has_boxes = group == 1 and are_boxed(head_dim, dtype, block_size, self._box_tokens, device)
        W = max(self.limits(size)[1] for size in range(1, max_batch_size + 1))
        of_shares = torch.full((4, W), -1, dtype=torch.int32, device=device)
        of_rows = torch.zeros(2, max_batch_size, dtype=torch.int32, device=device)
        self.row_of, self.slot_of, self.first_of, self.end_of = of_shares.unbind()
        self.first_share, self.num_shares = of_rows.unbind()
        self.tensors = *of_shares.unbind(), *of_rows.unbind()  # as kernels take them
        self.batch_size = 0  # the rows that it was last made for

    def reading(self, batch_size: int) -> Reading:
        """How the programs read in a batch of so many rows. In 8 bits a piece has as many bytes as a small
        one of 16 bits, because with fewer bytes on their way the memory waits."""
        tokens, heads = self._tokens, batch_size * self.num_heads
        if self._group > 1:
            num_queries = self.num_heads * self._group
            programs = group_programs(batch_size, num_queries, self.num_heads, self._dtype)
            return Reading(tokens * programs.num_warps, programs)
        fewer = NARROW._replace(at_once=NARROW.at_once * 3 // 4)
        more = NARROW._replace(at_once=NARROW.at_once * 3 // 2)
        if self._dtype.itemsize == 1:
            return Reading(tokens, more)
        if heads < MANY_HEADS:
            return Reading(tokens, NARROW)
        if not (self._has_boxes and LEAST_IN_BOXES <= heads <= MOST_IN_BOXES):
            return Reading(tokens // 2, more)
        if heads <= fewer.at_once:  # each has a program at once, with room for large boxes
            return Reading(self._box_tokens, fewer, is_boxed=True)
        return Reading(tokens, NARROW, is_boxed=True)

    def limits(self, batch_size: int) -> tuple[int, int]:
        """Of a batch of so many rows, the shares of which all programs run at the same time, and
        `most_shares`."""
        at_once = max(1, self.reading(batch_size).programs.at_once // self.num_heads)
        return at_once, most_shares(batch_size, at_once)


# --- the plan of a step ---------------------------------------------------------------------------------


def plan_shares_plain(
    context_lens: Tensor,  # [S] int32, tokens in the cache; below 0: a row that pads
    slot_mapping: Tensor,  # [B] int64
    plan: SharePlan,
) -> None:
    """Write the plan for a step of these rows. A row that pads, or is empty, has one share of no tokens.

    Plain PyTorch: the oracle of `plan_shares_triton`. Raises ValueError for arguments that do not fit.
    """
    check_plan_shares(context_lens, slot_mapping, plan)
    B = len(slot_mapping)
    piece = plan.reading(B).tokens
    lens = context_lens[slot_mapping].clamp(min=0)
    pieces = -(-lens // piece)
    least = -(-pieces // MAX_SHARES)
    at_once, most = plan.limits(B)
    sizes = least.clamp(min=share_size(pieces, at_once, most))
    num_shares = (-(-pieces // sizes)).clamp(min=1)
    ends = num_shares.cumsum(0)
    rows = torch.arange(B, device=pieces.device).repeat_interleave(num_shares)
    W = len(rows)
    plan.first_share[:B] = ends - num_shares
    plan.num_shares[:B] = num_shares
    plan.row_of[:W], plan.row_of[W:] = rows, -1
    plan.slot_of[:W] = slot_mapping[rows]
    tokens = sizes[rows] * piece
    plan.first_of[:W] = (torch.arange(W, device=pieces.device) - plan.first_share[rows]) * tokens
    plan.end_of[:W] = torch.minimum(plan.first_of[:W] + tokens, lens[rows])
    plan.batch_size = B


def share_size(pieces: Tensor, at_once: int, most: int) -> int:
    """Pieces of a share, for rows of so many pieces [B]: from the fair size, that of all pieces over the
    shares at once, to twice as many.

    The smallest that makes no more than `most` shares. But if some of them begin when others have ended, the
    last ends about half a share after the mean; then the smallest of which all run at once, if that ends as
    soon.
    """
    num_pieces = int(pieces.sum())
    fair = max(1, -(-num_pieces // at_once))
    least = -(-pieces // MAX_SHARES)
    sizes = [*range(fair, 2 * fair, -(-fair // STEPS)), 2 * fair]
    shares = {size: int((-(-pieces // least.clamp(min=size))).clamp(min=1).sum()) for size in sizes}
    chosen = next(size for size in sizes if shares[size] <= most)
    together = next((size for size in sizes if shares[size] <= at_once), 2 * fair)
    return together if 2 * together * at_once <= 2 * num_pieces + chosen * at_once else chosen


def plan_shares_triton(context_lens: Tensor, slot_mapping: Tensor, plan: SharePlan) -> None:
    """Write the plan for a step of these rows, in one program, without a word from the host.

    It is launched in order, behind all before it and ahead of all behind it: kernels of the step that begin
    early may read the plan before they wait, if the kernel right behind this one is launched in order, too.

    Takes and raises what `plan_shares_plain` does, and TritonUnavailableError where no kernel runs.
    """
    check_plan_shares(context_lens, slot_mapping, plan)
    check_launchable(slot_mapping.device)
    B = len(slot_mapping)
    _plan_shares_kernel[(1,)](
        context_lens,
        slot_mapping,
        *plan.tensors,
        B,
        len(plan.row_of),
        *plan.limits(B),
        PIECE=plan.reading(B).tokens,
        MOST=MAX_SHARES,
        STEPS=STEPS,
        BLOCK_B=triton.next_power_of_2(B),
        BLOCK_W=triton.next_power_of_2(len(plan.row_of)),
        num_warps=8,
    )
    plan.batch_size = B


@triton.jit
def _plan_shares_kernel(
    context_lens_ptr, slot_mapping_ptr, row_of_ptr, slot_of_ptr, first_of_ptr, end_of_ptr, first_share_ptr,
    num_shares_ptr,
    B, W, at_once, most,
    PIECE: tl.constexpr, MOST: tl.constexpr, STEPS: tl.constexpr, BLOCK_B: tl.constexpr,
    BLOCK_W: tl.constexpr,
):  # fmt: skip
    """All sizes of a share are tried at once."""
    b = tl.arange(0, BLOCK_B)
    in_batch = b < B
    slot = tl.load(slot_mapping_ptr + b, mask=in_batch, other=0)
    context_len = tl.maximum(tl.load(context_lens_ptr + slot, mask=in_batch, other=0), 0)
    pieces = (context_len + PIECE - 1) // PIECE
    least = (pieces + MOST - 1) // MOST  # that a share of the row must have

    num_pieces = tl.sum(pieces, axis=0)
    fair = tl.maximum((num_pieces + at_once - 1) // at_once, 1)
    steps = tl.arange(0, 2 * STEPS) * ((fair + STEPS - 1) // STEPS)
    size = tl.minimum(fair + steps, 2 * fair)  # which the last is
    tried = tl.maximum(least[:, None], size[None, :])
    num_tried = tl.maximum((pieces[:, None] + tried - 1) // tried, 1)
    num_all = tl.sum(tl.where(in_batch[:, None], num_tried, 0), axis=0)
    together = tl.min(tl.where(num_all <= at_once, size, 2 * fair), axis=0)
    chosen = tl.min(tl.where(num_all <= most, size, 2 * fair), axis=0)
    ends_as_soon = 2 * together * at_once <= 2 * num_pieces + chosen * at_once
    chosen = tl.where(ends_as_soon, together, chosen)

    sizes = tl.maximum(least, chosen)
    num_shares = tl.where(in_batch, tl.maximum((pieces + sizes - 1) // sizes, 1), 0)
    first_share = tl.cumsum(num_shares, axis=0) - num_shares
    tl.store(first_share_ptr + b, first_share, mask=in_batch)
    tl.store(num_shares_ptr + b, num_shares, mask=in_batch)
    share = tl.arange(0, MOST)[None, :] + tl.zeros([BLOCK_B, 1], tl.int32)
    place = first_share[:, None] + share
    is_share = share < num_shares[:, None]
    tl.store(row_of_ptr + place, b[:, None] + tl.zeros_like(share), mask=is_share)
    tl.store(slot_of_ptr + place, slot.to(tl.int32)[:, None] + tl.zeros_like(share), mask=is_share)
    first = share * (sizes * PIECE)[:, None]
    tl.store(first_of_ptr + place, first, mask=is_share)
    end = tl.minimum(first + (sizes * PIECE)[:, None], context_len[:, None])
    tl.store(end_of_ptr + place, end, mask=is_share)
    w = tl.arange(0, BLOCK_W)
    tl.store(row_of_ptr + w, w * 0 - 1, mask=(w >= tl.sum(num_shares, axis=0)) & (w < W))


def check_plan_shares(context_lens: Tensor, slot_mapping: Tensor, plan: SharePlan) -> None:
    """Raises ValueError naming the first argument whose shape, stride, dtype or device does not fit."""
    integers = {"device": plan.row_of.device, "last_stride_is_1": True}
    check_tensor("slot_mapping", slot_mapping, shape=("B",), dtype=torch.int64, **integers)
    check_tensor("context_lens", context_lens, shape=("S",), dtype=torch.int32, **integers)
    B, most = len(slot_mapping), len(plan.num_shares)
    if not 1 <= B <= most:
        raise ValueError(f"slot_mapping has {B} rows, expected 1 to {most}, for which the plan was made")
    check_range("slot_mapping", slot_mapping, len(context_lens))
