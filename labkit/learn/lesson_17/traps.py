"""Lesson 17: drafts and acceptances that are wrong, and the right ones that they are made from."""

import torch
from torch import Tensor

from labkit.kernels.ngram_drafts import NO_DRAFT
from labkit.kernels.verify_rows import NOT_MADE


def kept(made: Tensor, num_right: Tensor) -> Tensor:
    """The first num_right[b] + 1 tokens of each row, and NOT_MADE after them."""
    return made.masked_fill(torch.arange(made.shape[1]) > num_right[:, None], NOT_MADE)


def right(drafts: Tensor, made: Tensor) -> Tensor:
    """All right drafts before the first wrong one, and the token after them."""
    is_right = (made[:, :-1] == drafts) & (drafts >= 0)
    return kept(made, is_right.long().cumprod(dim=1).sum(dim=1))


def keeps_all_that_are_right(drafts: Tensor, made: Tensor) -> Tensor:
    """Right drafts are counted, also those after a wrong one."""
    return kept(made, ((made[:, :-1] == drafts) & (drafts >= 0)).sum(dim=1))


def keeps_every_draft(drafts: Tensor, made: Tensor) -> Tensor:
    """Every draft is kept, unchecked."""
    num_drafts = (drafts >= 0).sum(dim=1)
    last = made.gather(1, num_drafts[:, None])
    row = torch.cat([drafts, last], dim=1)
    return kept(row.scatter(1, num_drafts[:, None], last), num_drafts)


def nonsense(texts: Tensor, lens: Tensor, limits: Tensor, num_drafts: int) -> Tensor:
    """The drafts are the first tokens of the text, wherever the text is now."""
    is_draft = torch.arange(num_drafts) < torch.minimum(limits, lens)[:, None]
    return texts[:, :num_drafts].masked_fill(~is_draft, NO_DRAFT)
