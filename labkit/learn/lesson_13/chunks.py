"""Lesson 13: chunks of prompts, and the texts that a wrong one makes."""

from collections.abc import Sequence
from typing import NamedTuple
from unittest.mock import patch

from labkit.engine import CacheConfig, InferenceEngine, SamplingParams, SchedulerConfig, packed_chunk
from labkit.engine.packed_prefill import MakeChunk
from labkit.ladder import LADDER
from labkit.learn.answers import plain
from labkit.learn.exercise import BrokenContract
from labkit.model import LanguageModel

# --- the chunk that the reader's part is built on ----------------------------------------------------------

TokenIds = Sequence[int]


class Packed(NamedTuple):
    """Rows of packed prompts: token ids and positions [T], and where each prompt begins [P + 1]."""

    token_ids: list[int]
    positions: list[int]
    starts: list[int]


class InRows:
    """A `PackedChunk` in the pieces that the lesson writes: each is the package's until it is written."""

    def __init__(self, prompts: Sequence[TokenIds], num_computed: Sequence[int], max_tokens: int) -> None:
        """prompts: token ids of P prompts, the oldest first. num_computed: [P], how many of them have been
        computed. max_tokens: of all prompts together. Raises BrokenContract if `share_out` gives a prompt
        less than nothing, or more than it has left."""
        num_left = [len(ids) - done for ids, done in zip(prompts, num_computed, strict=True)]
        counts = plain(self.share_out(list(num_left), max_tokens))
        if not all(0 <= count <= left for count, left in zip(counts, num_left, strict=True)):
            raise BrokenContract(
                f"no prompt gets less than nothing, or more than it has left: with {num_left} tokens left, "
                f"room for {max_tokens}, `share_out` returned {list(counts)}."
            )
        self.token_ids, self.positions, self.starts = self.pack(prompts, num_computed, counts)
        self.context_lens = list(num_computed)

    def share_out(self, num_left: Sequence[int], max_tokens: int) -> Sequence[int]:
        """How many tokens each prompt gets in this chunk. num_left: how many it has left."""
        counts = []
        for left in num_left:
            counts.append(min(left, max_tokens - sum(counts)))
        return counts

    def pack(self, prompts: Sequence[TokenIds], num_computed: Sequence[int], counts: Sequence[int]) -> Packed:
        """The next counts[p] tokens of each prompt p, one prompt after another."""
        packed = Packed([], [], [0])
        for ids, first, count in zip(prompts, num_computed, counts, strict=True):
            packed.token_ids.extend(ids[first : first + count])
            packed.positions.extend(range(first, first + count))
            packed.starts.append(len(packed.token_ids))
        return packed


def pack_first(prompts: Sequence[TokenIds], num_computed: Sequence[int], counts: Sequence[int]) -> Packed:
    """The tokens of the first prompt that gets any, and none of the others': one prompt at a time."""
    chosen = next((p for p, count in enumerate(counts) if count), 0)
    alone = [count if p == chosen else 0 for p, count in enumerate(counts)]
    return InRows.pack(InRows.__new__(InRows), prompts, num_computed, alone)


def all_to_first(num_left: Sequence[int], max_tokens: int) -> list[int]:
    """All room of a chunk for the first prompt that has tokens left; what it does not need stays empty."""
    chosen = next((p for p, left in enumerate(num_left) if left), 0)
    return [min(left, max_tokens) if p == chosen else 0 for p, left in enumerate(num_left)]


# --- a chunk with a bug, and what it makes of texts --------------------------------------------------------


class GoesBack(InRows):
    """The next chunk of a prompt repeats the last token of the chunk before."""

    def pack(self, prompts: Sequence[TokenIds], num_computed: Sequence[int], counts: Sequence[int]) -> Packed:
        return super().pack(prompts, [max(0, done - 1) for done in num_computed], counts)


def unchecked_texts(
    model: LanguageModel, make_chunk: MakeChunk, prompts: Sequence[str], max_tokens: int, num_new: int
) -> list[str]:
    """How an engine goes on with each prompt, greedily, that counts the tokens of a chunk, `max_tokens` at
    most, and does not look at which ones they are."""
    engine = InferenceEngine(
        model,
        LADDER["13"].options,
        device=model.network.device,
        dtype=model.network.dtype,
        cache=CacheConfig(prefix_cache=False),
        scheduler=SchedulerConfig(prefill_max_tokens=max_tokens),
        parts={"batching": make_chunk},
    )
    with patch.object(packed_chunk, "_is_list", lambda made, expected: len(made) == len(expected)):
        completions = engine.generate(prompts, SamplingParams(num_new, stop_on_eos=False))
    return [completion.text for completion in completions]
