"""Drafts that are right with a chance that is set: what they are worth whatever a text says."""

from typing import Any

import torch
from torch import Tensor

from labkit.engine.step.verify import MOST_DRAFTS, VerifyStep

NUM_DRAWS = 4096  # rows of random numbers, which come around again


class DialedStep(VerifyStep):
    """A step that verifies as many drafts as there may be, and takes each for right with a chance.

    It does all the work of a `VerifyStep`, and what is found in the text is not used. The text is none that
    the model would write: it is there for its time. chance: [1], which may change between steps.
    """

    def __init__(self, *args: Any, chance: Tensor) -> None:
        super().__init__(*args)
        self._chance, self._find = chance, self.find_drafts
        self.find_drafts = self._found_or_not
        device, num_rows = self.limits.device, len(self.limits)
        numbers = torch.Generator().manual_seed(17)
        self._draws = torch.rand(NUM_DRAWS, num_rows, MOST_DRAFTS, generator=numbers).to(device)
        self._turn = torch.zeros(1, dtype=torch.int64, device=device)

    def _found_or_not(self, *args: Any) -> Tensor:
        found, (_, context_lens, slot_mapping, limits, num_drafts) = self._find(*args), args
        limits = limits.masked_fill(context_lens[slot_mapping] < 0, 0)  # of padding slots
        may_be = torch.arange(num_drafts, device=found.device) < limits[:, None]
        return torch.where(may_be, found.clamp(min=0), found)

    def accepted(self, made: Tensor, drafts: Tensor) -> Tensor:
        """How many drafts [B] are taken for right, up to the first that is not."""
        B, num_drafts = drafts.shape
        is_right = self._draws.index_select(0, self._turn % NUM_DRAWS)[0, :B, :num_drafts] < self._chance
        self._turn += 1
        return (is_right & (drafts >= 0)).long().cumprod(dim=1).sum(dim=1)
