"""Drafts from a request's own text: what came after the latest place where its last tokens stood before.

B requests, S slots, W tokens of a slot's text at most, K drafts at most. The text of slot s is the first
context_lens[s] + 1 tokens of its row: those in the cache, and the last one, which is not there yet. A context
length below 0 marks a padding slot, whose text is empty.
"""

import torch
from torch import Tensor

from labkit.kernels.checks import check_range, check_tensor
from labkit.kernels.triton_runtime import check_launchable, tl, triton

NO_DRAFT = -1  # where a row has no draft, or no more
TOKENS_PER_ROUND = 1024  # of a text that a program looks at together


def ngram_drafts_plain(
    texts: Tensor,  # [S, W] int32
    context_lens: Tensor,  # [S] int32
    slot_mapping: Tensor,  # [B] int64
    limits: Tensor,  # [B] int64
    num_drafts: int,
) -> Tensor:  # [B, K] int64
    """Up to limits[b] tokens that could come next, of at most num_drafts, then NO_DRAFT.

    They are copied from behind the latest earlier place of the text's last three tokens, or of its last two
    if the three stand nowhere else; there are none if those do not either, and fewer where the text ends.
    Plain PyTorch: the oracle of `ngram_drafts_triton`. Raises ValueError for arguments that do not fit.
    """
    check_drafts(texts, context_lens, slot_mapping, limits, num_drafts)
    lens = context_lens[slot_mapping].long() + 1
    rows = texts[slot_mapping].long()
    place = torch.arange(rows.shape[1], device=rows.device)

    def before(count: int) -> tuple[Tensor, Tensor]:
        """The token [B, W] so many places before each place, and the one before the text's end [B, 1]."""
        return rows.roll(count, dims=1), rows.gather(1, (lens - count).clamp(min=0)[:, None])

    (one, last), (two, second), (three, third) = before(1), before(2), before(3)
    is_pair = (one == last) & (two == second) & (place >= 2) & (place < lens[:, None])
    is_triple = is_pair & (three == third) & (place >= 3)
    after_pair, after_triple = (torch.where(found, place, 0).amax(dim=1) for found in (is_pair, is_triple))
    first = torch.where(after_triple > 0, after_triple, after_pair)  # 0: the last tokens are new
    j = torch.arange(num_drafts, device=rows.device)
    sources = first[:, None] + j
    is_draft = (first > 0)[:, None] & (sources < lens[:, None]) & (j < limits[:, None])
    return rows.gather(1, sources.clamp(max=rows.shape[1] - 1)).masked_fill(~is_draft, NO_DRAFT)


def ngram_drafts_triton(
    texts: Tensor, context_lens: Tensor, slot_mapping: Tensor, limits: Tensor, num_drafts: int
) -> Tensor:
    """The drafts [B, K] of each request, in one kernel: one program per request, which reads its text once.

    Takes and raises what `ngram_drafts_plain` does, and TritonUnavailableError where no kernel runs.
    """
    check_drafts(texts, context_lens, slot_mapping, limits, num_drafts)
    check_launchable(texts.device)
    drafts = torch.empty(len(slot_mapping), num_drafts, dtype=torch.int64, device=texts.device)
    tensors = texts, context_lens, slot_mapping, limits, drafts
    blocks = {"BLOCK": TOKENS_PER_ROUND, "BLOCK_DRAFTS": triton.next_power_of_2(num_drafts)}
    _ngram_drafts_kernel[(len(slot_mapping),)](*tensors, texts.stride(0), num_drafts, **blocks)
    return drafts


@triton.jit
def _ngram_drafts_kernel(
    texts_ptr, context_lens_ptr, slot_mapping_ptr, limits_ptr, drafts_ptr,
    texts_stride_s,
    num_drafts,
    BLOCK: tl.constexpr, BLOCK_DRAFTS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + b)
    text_ptr = texts_ptr + slot * texts_stride_s
    length = tl.load(context_lens_ptr + slot) + 1
    last = tl.load(text_ptr + length - 1, mask=length >= 1, other=0)
    second = tl.load(text_ptr + length - 2, mask=length >= 2, other=0)
    third = tl.load(text_ptr + length - 3, mask=length >= 3, other=0)
    after_pair = tl.zeros([BLOCK], tl.int32)
    after_triple = tl.zeros([BLOCK], tl.int32)
    for start in range(2, length, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < length
        one = tl.load(text_ptr + place - 1, mask=inside, other=0)
        two = tl.load(text_ptr + place - 2, mask=inside, other=0)
        three = tl.load(text_ptr + place - 3, mask=inside & (place >= 3), other=0)
        is_pair = inside & (one == last) & (two == second)
        is_triple = is_pair & (place >= 3) & (three == third)
        after_pair = tl.where(is_pair, place, after_pair)  # later rounds have later places
        after_triple = tl.where(is_triple, place, after_triple)
    first = tl.max(after_triple)
    if first == 0:
        first = tl.max(after_pair)
    j = tl.arange(0, BLOCK_DRAFTS)
    is_draft = (first > 0) & (first + j < length) & (j < tl.load(limits_ptr + b))
    drafts = tl.load(text_ptr + first + j, mask=is_draft, other=-1).to(tl.int64)
    tl.store(drafts_ptr + b * num_drafts + j, drafts, mask=j < num_drafts)


def check_drafts(
    texts: Tensor, context_lens: Tensor, slot_mapping: Tensor, limits: Tensor, num_drafts: int
) -> None:
    """Raises ValueError naming the first argument that does not fit."""
    on_device = {"device": texts.device, "last_stride_is_1": True}
    check_tensor("texts", texts, shape=("S", "W"), dtype=torch.int32, last_stride_is_1=True)
    check_tensor("context_lens", context_lens, shape=(len(texts),), dtype=torch.int32, **on_device)
    check_tensor("slot_mapping", slot_mapping, shape=("B",), dtype=torch.int64, **on_device)
    check_tensor("limits", limits, shape=(len(slot_mapping),), dtype=torch.int64, **on_device)
    if num_drafts < 1:
        raise ValueError(f"num_drafts is {num_drafts}, expected 1 or more")
    check_range("slot_mapping", slot_mapping, len(texts))
    check_range("context_lens", context_lens, texts.shape[1], least=-1)  # -1: of a padding slot
