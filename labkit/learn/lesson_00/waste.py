"""Lesson 00: what the size of a block costs: slots that stay empty, and entries of the block table."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Waste:
    """What texts take in blocks of one size: slots without a token, all slots, and entries of a row of the
    block table, which has room for the longest possible text."""

    block_size: int
    empty_slots: int
    slots: int
    row_entries: int

    @property
    def share(self) -> float:
        """Empty slots among all that are set aside."""
        return self.empty_slots / self.slots


def waste_of(lengths: Sequence[int], block_size: int, max_length: int) -> Waste:
    """What texts of these lengths take, each in blocks of its own.

    lengths: in tokens, none of them 0. max_length: of the longest possible text, in tokens.
    """
    blocks = [-(-length // block_size) for length in lengths]
    slots = sum(blocks) * block_size
    return Waste(block_size, slots - sum(lengths), slots, -(-max_length // block_size))
