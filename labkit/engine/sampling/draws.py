"""What a batch asks of the sampler."""

from collections.abc import Iterable
from enum import IntEnum

from labkit.engine.sampling.params import SamplingParams


class Draws(IntEnum):
    """Whether a batch's requests draw, and from all tokens or from some: chosen once for a whole batch.

    A step that knows no difference among batches that draw takes it as a bool, `is_greedy`: NONE is true and
    equal to True, FILTERED is false and equal to False.
    """

    FILTERED = 0  # a request draws, and one has top-k, top-p or min-p
    NONE = 1  # all take the likeliest token
    PLAIN = 2  # a request draws; those that do draw from all tokens

    def __bool__(self) -> bool:
        return self is Draws.NONE

    @classmethod
    def of(cls, params: Iterable[SamplingParams]) -> "Draws":
        """What requests of these parameters ask for, together."""
        drawing = [p for p in params if not p.is_greedy]
        if not drawing:
            return cls.NONE
        return cls.FILTERED if any(p.is_filtered for p in drawing) else cls.PLAIN


EITHER_WAY = (Draws.FILTERED, Draws.NONE)  # the kinds of batches that every step can tell apart
