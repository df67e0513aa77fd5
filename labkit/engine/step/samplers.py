"""How a step on the device gets its tokens from logits, when a request of the batch draws.

A sampler makes token ids [B] from logits [B, V] by the slots' parameters, and advances the slots by them. Its
families are the kinds of batches, greedy ones included, that a step of it runs in different ways.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Union

from torch import Tensor

from labkit.engine.sampling import EITHER_WAY, Draws, sample_any
from labkit.kernels import SamplingState

if TYPE_CHECKING:
    from labkit.engine.step.chunk import FirstTokens
    from labkit.engine.step.device import DeviceStep

Sampled = Union["DeviceStep", "FirstTokens"]  # what tokens are sampled for
DrawFunction = Callable[[Tensor, Tensor, Tensor, Tensor, SamplingState, bool], None]  # as `draw_plain`


class SortedSampler:
    """Every row is sorted, greedy or not (rung 06)."""

    families: ClassVar[tuple[Draws, ...]] = EITHER_WAY

    def __call__(self, step: Sampled, logits: Tensor, slot_mapping: Tensor, draws: Draws) -> Tensor:
        state = step.slots.sampling_state
        of_rows = state.at(slot_mapping)
        token_ids = sample_any(logits, of_rows)
        state.draws[slot_mapping] = of_rows.draws + 1
        return step.advance(token_ids, slot_mapping)


@dataclass(eq=False)
class SearchedSampler:
    """Every row takes its likeliest token, and rows that draw have another one put in its place (rung 12).

    What is cut off is searched for, and only if a request of the batch has top-k or top-p.
    """

    draw: DrawFunction  # `draw_triton` or its plain twin
    families: ClassVar[tuple[Draws, ...]] = tuple(Draws)

    def __call__(self, step: Sampled, logits: Tensor, slot_mapping: Tensor, draws: Draws) -> Tensor:
        slots = step.slots
        token_ids = step.take_likeliest(logits, slot_mapping)
        is_filtered = draws == Draws.FILTERED
        self.draw(logits, token_ids, slot_mapping, slots.last_token_ids, slots.sampling_state, is_filtered)
        return token_ids


Sampler = SortedSampler | SearchedSampler
