"""Lesson 14: a cache of blocks in a small pool, with texts that are written there for it."""

from collections.abc import Callable, Sequence

import torch

from labkit.engine import CacheConfig, InferenceEngine, InferenceSession
from labkit.kvcache import Prefixes
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Build, small_model

BlockKey = Callable[[int, tuple[int, ...]], int]
BLOCK_SIZE = 4
NUM_BLOCKS = 16
LONG = tuple(range(1, 11))  # two full blocks, and two tokens
OTHER = tuple(range(20, 31))
THIRD = tuple(range(60, 74))


class PlayedCache:
    """The cache of an engine in which nothing runs. Its texts are written by hand, all values zero.

    block_key: in place of the cache's own, if it has one.
    """

    def __init__(self, build: Build, block_key: BlockKey | None = None) -> None:
        cache = CacheConfig(BLOCK_SIZE, NUM_BLOCKS)
        self.engine: InferenceEngine = build(small_model(), dtype=torch.float32, cache=cache)
        if self.engine.prefix_cache is None:
            raise BrokenContract("the engine has no cache of prefixes.")
        self.cache: Prefixes = self.engine.prefix_cache
        self.manager = self.engine.kv_manager
        self.written: dict[int, tuple[int, ...]] = {}  # by block: the text up to its end
        if block_key and hasattr(self.cache, "block_key"):
            self.cache.block_key = block_key

    def kept(self, token_ids: Sequence[int], begins: InferenceSession | None = None) -> InferenceSession:
        """A session that holds a text in blocks of its own, after those of a session that it begins with. The
        cache has kept it."""
        session = begins.fork() if begins else InferenceSession(self.manager)
        num_layers, _, num_heads, _, head_dim = self.manager.k_cache.shape
        new = torch.zeros(num_layers, num_heads, len(token_ids) - session.num_tokens, head_dim)
        session.append_prompt(new.to(self.manager.k_cache), new.to(self.manager.v_cache))
        for place, block_id in enumerate(session.block_ids_per_layer[0]):
            self.written[block_id] = tuple(token_ids[: (place + 1) * BLOCK_SIZE])
        self.cache.keep_text(token_ids, session.block_ids_per_layer)
        return session

    def keep(self, token_ids: Sequence[int]) -> None:
        """A request with this text comes and goes."""
        self.kept(token_ids).release()

    def found(self, token_ids: Sequence[int], contract: str) -> int:
        """How many tokens of a text the cache finds.

        Raises BrokenContract if what it returns is no prefix, or has blocks that were written for another
        text.
        """
        prefix = self.cache.lookup(token_ids)
        if prefix is None:
            return 0
        block_ids = prefix.block_ids_per_layer[0]
        if prefix.num_tokens != len(block_ids) * BLOCK_SIZE:
            raise BrokenContract(
                f"{contract}: of {list(token_ids)} {prefix.num_tokens} tokens in {len(block_ids)} blocks are "
                f"found, expected {BLOCK_SIZE} in each: only full blocks are shared."
            )
        for place, block_id in enumerate(block_ids):
            expected = tuple(token_ids[: (place + 1) * BLOCK_SIZE])
            if self.written.get(block_id) != expected:
                raise BrokenContract(
                    f"{contract}: block {place} of {list(token_ids)} is found in block {block_id} of the "
                    f"pool, which was written for {list(self.written.get(block_id, ()))}, expected one for "
                    f"{list(expected)}. Compare the token ids, and the entry before. An entry also has "
                    "to hold its block."
                )
        return prefix.num_tokens

    @property
    def texts(self) -> list[list[int]]:
        """The text of each entry, up to its block's end, the shortest first."""
        return sorted((list(entry.text) for entry in self.cache), key=lambda text: (len(text), text))
