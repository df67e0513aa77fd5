"""Lesson 13: the chunk that the reader's part is built on, and chunks that break one of its contracts."""

from collections.abc import Sequence
from typing import NamedTuple

from labkit.checks import shown
from labkit.learn.answers import plain
from labkit.learn.exercise import BrokenContract

TokenIds = Sequence[int]


class Packed(NamedTuple):
    """Rows of prompts behind each other: token ids and positions [T], and where each begins [P + 1]."""

    token_ids: list[int]
    positions: list[int]
    starts: list[int]


class InRows:
    """A `PackedChunk` in the pieces that the lesson writes: each is the package's until it is written."""

    def __init__(self, prompts: Sequence[TokenIds], num_computed: Sequence[int], max_tokens: int) -> None:
        """prompts: token ids of P prompts, the oldest first. num_computed: [P], how many of them have been
        computed. max_tokens: of all prompts together. Raises BrokenContract if `share_out` or `pack` returns
        something of another form."""
        num_left = [len(ids) - done for ids, done in zip(prompts, num_computed, strict=True)]
        counts = checked_counts(self.share_out(list(num_left), max_tokens), num_left, max_tokens)
        rows = checked_rows(self.pack(prompts, num_computed, counts))
        self.token_ids, self.positions, self.starts = rows
        self.context_lens = list(num_computed)

    def share_out(self, num_left: Sequence[int], max_tokens: int) -> Sequence[int]:
        """How many tokens each prompt gets in this chunk. num_left: how many it has left."""
        counts = []
        for left in num_left:
            counts.append(min(left, max_tokens - sum(counts)))
        return counts

    def pack(self, prompts: Sequence[TokenIds], num_computed: Sequence[int], counts: Sequence[int]) -> Packed:
        """The next counts[p] tokens of each prompt p, behind each other."""
        packed = Packed([], [], [0])
        for ids, first, count in zip(prompts, num_computed, counts, strict=True):
            packed.token_ids.extend(ids[first : first + count])
            packed.positions.extend(range(first, first + count))
            packed.starts.append(len(packed.token_ids))
        return packed


def checked_counts(made: object, num_left: Sequence[int], max_tokens: int) -> list[int]:
    """The list that `share_out` returned. Raises BrokenContract unless each prompt has a number, from 0
    to what it has left."""
    counts = plain(made)
    if (
        not isinstance(counts, tuple)
        or len(counts) != len(num_left)
        or not all(type(count) is int and count >= 0 for count in counts)
    ):
        raise BrokenContract(
            f"each prompt gets a number of tokens, maybe 0: with {list(num_left)} tokens left, room for "
            f"{max_tokens}, `share_out` returned {shown(made)}, expected a list of {len(num_left)} whole "
            "numbers from 0 on."
        )
    for p, (count, left) in enumerate(zip(counts, num_left, strict=True)):
        if count > left:
            raise BrokenContract(
                f"no prompt gets more than it has left: with {list(num_left)} tokens left, room for "
                f"{max_tokens}, `share_out` returned {list(counts)}, and prompt {p} has {left}."
            )
    return list(counts)


def checked_rows(made: object) -> Sequence:
    """What `pack` returned. Raises BrokenContract unless it has three parts."""
    if not isinstance(made, tuple | list) or len(made) != 3:
        raise BrokenContract(
            f"a chunk is three lists: `pack` returned {shown(made)}, expected token_ids, positions and "
            "starts, in this order."
        )
    return made


def pack_first(prompts: Sequence[TokenIds], num_computed: Sequence[int], counts: Sequence[int]) -> Packed:
    """The tokens of the first prompt that gets any, and none of the others': one prompt at a time."""
    chosen = next((p for p, count in enumerate(counts) if count), 0)
    alone = [count if p == chosen else 0 for p, count in enumerate(counts)]
    return InRows.pack(InRows.__new__(InRows), prompts, num_computed, alone)


def all_to_first(num_left: Sequence[int], max_tokens: int) -> list[int]:
    """All room of a chunk for the first prompt that has tokens left; what it does not need stays empty."""
    chosen = next((p for p, left in enumerate(num_left) if left), 0)
    return [min(left, max_tokens) if p == chosen else 0 for p, left in enumerate(num_left)]


# --- chunks with a bug ------------------------------------------------------------------------------------


class BeginsAtZero(InRows):
    """Positions begin at 0 in each chunk, also where a prompt goes on."""

    def pack(self, prompts: Sequence[TokenIds], num_computed: Sequence[int], counts: Sequence[int]) -> Packed:
        packed = super().pack(prompts, num_computed, counts)
        return packed._replace(positions=[i for count in counts for i in range(count)])


class BeginsOneEarly(InRows):
    """Each prompt but the first begins a row early: with the last token of the one before."""

    def pack(self, prompts: Sequence[TokenIds], num_computed: Sequence[int], counts: Sequence[int]) -> Packed:
        packed = super().pack(prompts, num_computed, counts)
        first, *inner, last = packed.starts
        return packed._replace(starts=[first, *(max(0, start - 1) for start in inner), last])


class OverBudget(InRows):
    """Takes all that is left, whatever the room."""

    def share_out(self, num_left: Sequence[int], max_tokens: int) -> Sequence[int]:
        return num_left


class GoesBack(InRows):
    """A prompt's next chunk begins with the last token of its chunk before, once more."""

    def pack(self, prompts: Sequence[TokenIds], num_computed: Sequence[int], counts: Sequence[int]) -> Packed:
        return super().pack(prompts, [max(0, done - 1) for done in num_computed], counts)
