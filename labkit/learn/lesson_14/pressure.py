"""Lesson 14: a cache of blocks alone, without a model: how much it finds in a small pool, and how fast."""

import random
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch

from labkit.engine import InferenceSession
from labkit.kvcache import KVBlockManager, OneTableBlockManager, Prefixes
from labkit.learn.lesson_14.block_cache import BlockCache

Part = Callable[[KVBlockManager], Prefixes]
NUM_SYSTEMS, SYSTEM_TOKENS, QUESTION_TOKENS, BLOCK_SIZE = 12, 128, 20, 16
NUM_TEXTS = 300
LOOKUPS = 30


class AllAtOnce(BlockCache):
    """Everything goes as soon as one block is needed."""

    def evict_one(self) -> bool:
        return self.drop_all()


def pool(num_blocks: int, block_size: int) -> KVBlockManager:
    """A pool whose blocks hold one number per token."""
    return OneTableBlockManager(
        num_layers=1, num_heads=1, head_dim=1, block_size=block_size, max_blocks_per_layer=num_blocks
    )


def come_and_go(manager: KVBlockManager, cache: Prefixes, token_ids: Sequence[int]) -> int:
    """A request takes its blocks, evicting what it must, and is kept when it ends: how many tokens were
    found. Raises OutOfBlocksError for a text that the pool is too small for."""
    prefix = cache.lookup(token_ids)
    session = InferenceSession(manager, prefix)
    while session.blocks_to_reach(len(token_ids)) > manager.num_free_blocks and cache.evict_one():
        pass
    found = session.num_tokens
    new = torch.zeros(1, 1, len(token_ids) - found, 1)
    try:
        session.append_prompt(new, new)
        cache.keep_text(token_ids, session.block_ids_per_layer)
    finally:
        session.release()
    return found


def draw_texts(num_texts: int = NUM_TEXTS, seed: int = 0) -> list[tuple[int, ...]]:
    """System prompts in random order, the n-th with weight 1 / n, each time with another question."""
    rng = random.Random(seed)
    weights = [1 / (n + 1) for n in range(NUM_SYSTEMS)]
    systems = [tuple(1000 * n + i for i in range(SYSTEM_TOKENS)) for n in range(NUM_SYSTEMS)]
    drawn = rng.choices(systems, weights, k=num_texts)
    return [(*system, *(rng.randrange(10**6) for _ in range(QUESTION_TOKENS))) for system in drawn]


def found_share(part: Part, num_blocks: int) -> float:
    """The share of all tokens of `draw_texts` that a cache finds in a pool of so many blocks."""
    manager = pool(num_blocks, BLOCK_SIZE)
    cache, drawn = part(manager), draw_texts()
    return sum(come_and_go(manager, cache, text) for text in drawn) / sum(map(len, drawn))


def lookup_us(part: Part, lengths: Sequence[int], block_size: int) -> dict[int, float]:
    """Microseconds of a lookup, the median of some, by the length of a text that is cached."""
    times = {}
    for length in lengths:
        manager = pool(length // block_size + 2, block_size)
        cache, text = part(manager), tuple(range(length))
        come_and_go(manager, cache, text)
        seconds, other = [], tuple(range(length, 2 * length))
        for _ in range(LOOKUPS):
            cache.lookup(other)  # so that what the text begins with is not remembered
            began = time.perf_counter()
            cache.lookup(text)
            seconds.append(time.perf_counter() - began)
        times[length] = 1e6 * median(seconds)
    return times
