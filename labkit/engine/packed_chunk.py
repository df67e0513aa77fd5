"""Which tokens of which prompts the next chunk computes: behind each other, without pads."""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from labkit.checks import shown
from labkit.errors import OptionError


class PackedChunk:
    """The next T tokens of P prompts, as many as there is room for.

    The first prompt gets as many as it has left, then the second one, until the room is taken: the rest of a
    prompt goes on in the next chunk, where its earlier tokens are its context.
    Rows starts[p] to starts[p + 1] - 1 are the next tokens of prompt p, or there are none of it.
    token_ids, positions: [T], the token of each row and its place in its prompt. starts: [P + 1], from 0 on.
    context_lens: [P], the tokens of each prompt that come before its first row.
    """

    def __init__(
        self, prompts: Sequence[Sequence[int]], num_computed: Sequence[int], max_tokens: int
    ) -> None:
        """prompts: token ids of P prompts, the oldest first. num_computed: [P], how many of them earlier
        chunks have had, or the prefix cache. max_tokens: of all prompts together."""
        self.token_ids: list[int] = []
        self.starts = [0]
        self.context_lens = list(num_computed)
        for token_ids, start in zip(prompts, num_computed, strict=True):
            end = min(len(token_ids), start + max_tokens - len(self.token_ids))
            self.token_ids += token_ids[start:end]
            self.starts.append(len(self.token_ids))

    @cached_property
    def positions(self) -> list[int]:
        """The place of each row's token in its prompt, made when it is asked for."""
        counts = [end - start for start, end in pairwise(self.starts)]
        each = zip(self.context_lens, counts, strict=True)
        return [position for start, count in each for position in range(start, start + count)]


def counts_of(
    chunk: PackedChunk, prompts: Sequence[Sequence[int]], num_computed: Sequence[int], max_tokens: int
) -> list[int]:
    """How many tokens each prompt has in the chunk.

    Raises OptionError for a chunk that is not what `PackedChunk` says of these prompts, has more than
    max_tokens, or has none.
    """
    if len(chunk.starts) != len(prompts) + 1 or chunk.starts[0] != 0:
        refuse(f"starts has the {len(prompts) + 1} numbers from 0 on, not {shown(chunk.starts)}")
    starts = list(chunk.starts)
    counts = [end - start for start, end in pairwise(starts)]
    if not 0 < starts[-1] <= max_tokens:
        refuse(f"it has {shown(starts[-1])} tokens, but 1 to {max_tokens} are allowed")
    if not _is_list(chunk.context_lens, num_computed):
        refuse(f"context_lens is {list(num_computed)}, not {shown(chunk.context_lens)}")
    expected_ids: list[int] = []
    expected_positions: list[int] = []
    for p, (token_ids, done, count) in enumerate(zip(prompts, num_computed, counts, strict=True)):
        if not 0 <= count <= len(token_ids) - done:
            refuse(f"prompt {p} has {len(token_ids) - done} tokens left, of which it gets {shown(count)}")
        expected_ids += token_ids[done : done + count]
        expected_positions += range(done, done + count)
    if not _is_list(chunk.token_ids, expected_ids):
        refuse("token_ids are the next tokens of each prompt, behind each other, as starts says")
    if not _is_list(chunk.positions, expected_positions):
        refuse("positions are the places of the tokens in their own prompts, from context_lens on")
    return counts


def _is_list(made: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether these are the expected numbers; of others no more are looked at than there should be."""
    return len(made) == len(expected) and list(made) == list(expected)


def refuse(reason: str) -> None:
    """Raise OptionError for a chunk of the part for batching."""
    raise OptionError(f"the part for batching made a wrong chunk: {reason}")
