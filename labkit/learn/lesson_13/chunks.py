"""Lesson 13: chunks of prompts, and texts that are made of them by hand."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.engine import CacheConfig, InferenceEngine
from labkit.engine.packed_chunk import PackedChunk
from labkit.engine.packed_prefill import MakeChunk
from labkit.engine.step.chunk import PackedAttention
from labkit.kernels import PackedRows, kv_append_packed_plain, packed_attention_plain
from labkit.ladder import LADDER
from labkit.learn.answers import plain
from labkit.learn.exercise import BrokenContract
from labkit.model import LanguageModel

# --- the chunk that the reader's part is built on, and chunks that break one of its contracts ----------

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


# --- chunks with a bug ------------------------------------------------------------------------------------


class BeginsAtZero(InRows):
    """Positions begin at 0 in each chunk, even if a prompt goes on in it."""

    def pack(self, prompts: Sequence[TokenIds], num_computed: Sequence[int], counts: Sequence[int]) -> Packed:
        packed = super().pack(prompts, num_computed, counts)
        return packed._replace(positions=[i for count in counts for i in range(count)])


class BeginsOneEarly(InRows):
    """Each prompt except the first begins one row early, with a token of the one before."""

    def pack(self, prompts: Sequence[TokenIds], num_computed: Sequence[int], counts: Sequence[int]) -> Packed:
        packed = super().pack(prompts, num_computed, counts)
        first, *inner, last = packed.starts
        return packed._replace(starts=[first, *(max(0, start - 1) for start in inner), last])


class OverBudget(InRows):
    """Takes all tokens that are left, however little room there is."""

    def share_out(self, num_left: Sequence[int], max_tokens: int) -> Sequence[int]:
        return num_left


class GoesBack(InRows):
    """The next chunk of a prompt repeats the last token of the chunk before."""

    def pack(self, prompts: Sequence[TokenIds], num_computed: Sequence[int], counts: Sequence[int]) -> Packed:
        return super().pack(prompts, [max(0, done - 1) for done in num_computed], counts)


# --- a model's tokens from chunks alone, without an engine: what a wrong chunk makes of texts ----------

BLOCK_SIZE = 8


def texts_by_hand(
    model: LanguageModel, make_chunk: MakeChunk, prompts: Sequence[str], max_tokens: int, num_new: int
) -> list[str]:
    """How the model goes on with each prompt, greedily, computed in chunks of `max_tokens` tokens at most: a
    wrong one as it is, which the engine would refuse. A new token of each prompt is a chunk, too."""
    texts = [list(model.tokenizer.encode(prompt)) for prompt in prompts]
    num_first, num_computed = [len(ids) for ids in texts], [0] * len(texts)
    compute = by_hand(model, len(texts), max(num_first) + max_tokens + num_new)
    last_logits = torch.zeros(len(texts), model.config.vocab_size)
    while any(len(ids) > done for ids, done in zip(texts, num_computed, strict=True)):
        chunk = make_chunk(texts, list(num_computed), max_tokens)
        logits = compute(chunk)
        due = InRows(texts, num_computed, max_tokens).starts
        # A chunk of all tokens that are due counts as that, wherever it says that its prompts begin.
        starts = due if len(chunk.token_ids) == due[-1] else chunk.starts
        for p, (first, end) in enumerate(pairwise(starts)):
            num_computed[p] += end - first
            if end > first:
                last_logits[p] = logits[p]
    for _ in range(num_new):
        for ids, token_id in zip(texts, last_logits.argmax(dim=-1).tolist(), strict=True):
            ids.append(token_id)
        last_logits = compute(InRows(texts, [len(ids) - 1 for ids in texts], len(texts)))
    return [model.tokenizer.decode(ids[first:]) for ids, first in zip(texts, num_first, strict=True)]


def by_hand(
    model: LanguageModel, num_prompts: int, num_tokens: int
) -> Callable[[PackedChunk | InRows], Tensor]:
    """What computes a chunk: the logits [P, V] after the last row of each prompt. Keys and values go to a
    paged cache, in which prompt p has the p-th run of blocks, with room for so many tokens."""
    network, each = model.network, -(-num_tokens // BLOCK_SIZE)
    cache = CacheConfig(BLOCK_SIZE, each * num_prompts, prefix_cache=False)
    options, placed = LADDER["13"].options, {"device": network.device, "dtype": network.dtype}
    pool = InferenceEngine(model, options, cache=cache, **placed).kv_manager
    attention = PackedAttention(pool, packed_attention_plain, kv_append_packed_plain)
    tables = torch.arange(each * num_prompts, device=network.device).int().view(-1, each)

    @torch.inference_mode()
    def compute(chunk: PackedChunk | InRows) -> Tensor:
        token_ids, positions, starts, context_lens = (
            torch.tensor(list(numbers), device=network.device)
            for numbers in (chunk.token_ids, chunk.positions, chunk.starts, chunk.context_lens)
        )
        attention.begin(PackedRows(starts.int(), context_lens.int(), tables))
        hidden = network(token_ids[None], positions[None], attention)
        return network.lm_head(hidden[0, (starts[1:] - 1).clamp(min=0)]).cpu()

    return compute
