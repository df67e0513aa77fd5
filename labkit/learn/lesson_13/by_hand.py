"""Lesson 13: a model's tokens from chunks alone, without an engine: what a wrong chunk makes of texts."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from labkit.engine.packed_chunk import Chunk
from labkit.engine.packed_prefill import MakeChunk
from labkit.engine.step.chunk import PackedAttention
from labkit.kernels import PackedRows, kv_append_packed_plain, packed_attention_plain
from labkit.kvcache import KVBlockManager
from labkit.learn.lesson_13.chunks import InRows
from labkit.model import LanguageModel

BLOCK_SIZE = 8


def texts_by_hand(
    model: LanguageModel, make_chunk: MakeChunk, prompts: Sequence[str], max_tokens: int, num_new: int
) -> list[str]:
    """How the model goes on with each prompt, computed in chunks of `max_tokens` tokens at most.

    Whatever a chunk says is done, unlike in the engine, which refuses a wrong one. New tokens are the
    likeliest; a new token of each prompt is a chunk, too.
    """
    texts = [list(model.tokenizer.encode(prompt)) for prompt in prompts]
    num_first, num_computed = [len(ids) for ids in texts], [0] * len(texts)
    by_hand = ByHand(model, texts, max_tokens + num_new)
    last_logits = torch.zeros(len(texts), model.config.vocab_size)
    while any(len(ids) > done for ids, done in zip(texts, num_computed, strict=True)):
        chunk = make_chunk(texts, list(num_computed), max_tokens)
        logits = by_hand.compute(chunk)
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
        last_logits = by_hand.compute(InRows(texts, [len(ids) - 1 for ids in texts], len(texts)))
    return [model.tokenizer.decode(ids[first:]) for ids, first in zip(texts, num_first, strict=True)]


class ByHand:
    """A model with a paged cache in which prompt p has the p-th run of blocks."""

    def __init__(self, model: LanguageModel, prompts: Sequence[Sequence[int]], num_more: int) -> None:
        """num_more: tokens that there is room for behind each prompt."""
        self.network = model.network
        each = -(-(max(map(len, prompts)) + num_more) // BLOCK_SIZE)
        pool = KVBlockManager(
            num_layers=model.config.num_layers,
            num_heads=model.config.num_kv_heads,
            head_dim=model.config.head_dim,
            block_size=BLOCK_SIZE,
            max_blocks_per_layer=each * len(prompts),
            device=self.network.device,
            dtype=self.network.dtype,
        )
        self.attention = PackedAttention(pool, packed_attention_plain, kv_append_packed_plain)
        self.tables = torch.arange(each * len(prompts), device=self.network.device).int().view(-1, each)

    @torch.inference_mode()
    def compute(self, chunk: Chunk) -> Tensor:
        """Logits [P, V] after the last row of each prompt; keys and values go to the cache."""
        token_ids, positions, starts, context_lens = (
            torch.tensor(list(numbers), device=self.network.device)
            for numbers in (chunk.token_ids, chunk.positions, chunk.starts, chunk.context_lens)
        )
        self.attention.begin(PackedRows(starts.int(), context_lens.int(), self.tables))
        hidden = self.network(token_ids[None], positions[None], self.attention)
        return self.network.lm_head(hidden[0, (starts[1:] - 1).clamp(min=0)]).cpu()
