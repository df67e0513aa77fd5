"""The block prefix cache alone: what is found, what is kept, what goes first; and texts that never mix."""

import pytest
from helpers import kv_numbers, make_manager

from labkit.engine import InferenceSession
from labkit.kvcache import BlockPrefixCache, OneTableBlockManager


def cache_of(*texts, kind=BlockPrefixCache, num_blocks=20):
    """A cache of blocks of 4 that was told of these texts, one after the other, by sessions that are gone.

    The keys and values of the text with number i are those of tokens 100 * i and on.
    """
    manager = make_manager(OneTableBlockManager, max_blocks_per_layer=num_blocks)
    prefix_cache = kind(manager)
    for i, text in enumerate(texts):
        compute(prefix_cache, manager, text, first=100 * i).release()
    return manager, prefix_cache


def compute(prefix_cache, manager, text, first):
    """A session that computed all of a text, whatever is cached, and told the cache."""
    session = InferenceSession(manager)
    session.append_prompt(*kv_numbers(manager, first, len(text)))
    prefix_cache.keep_text(text, session.block_ids_per_layer)
    return session


def text(*beginnings):
    """A text of blocks, each of which is four times one token."""
    return tuple(token_id for token_id in beginnings for _ in range(4))


# --- found -----------------------------------------------------------------------------------------


def test_texts_that_begin_like_the_one_before_have_the_blocks_in_common_hashed_once():
    class Counting(BlockPrefixCache):
        hashed = 0

        def block_key(self, parent_key, token_ids):
            self.hashed += 1
            return super().block_key(parent_key, token_ids)

    manager, prefix_cache = cache_of(text(1, 2, 3), kind=Counting)
    prefix_cache.hashed = 0
    assert prefix_cache.lookup((*text(1, 2, 3), 9)).num_tokens == 12  # as it was kept
    assert prefix_cache.hashed == 3  # of which nothing had been found before it was kept
    for i in range(5):
        question = (*text(1, 2, 3, 50 + i), 9)
        assert not prefix_cache.is_coming(question, [(10**6, *question[1:])])  # ends alike
        assert prefix_cache.lookup(question).num_tokens == 12
        compute(prefix_cache, manager, question, first=0).release()
    assert prefix_cache.hashed == 3 + 5 * 3  # the block of its own: asked for, looked up, kept
    prefix_cache.clear()
    assert prefix_cache.lookup((*text(1, 2, 3), 9)) is None
    assert prefix_cache.lookup((*text(9), 9)) is None


def test_blocks_that_were_kept_before_one_that_is_not_full_go_in_order_all_the_same():
    manager, prefix_cache = cache_of()
    session = InferenceSession(manager)
    session.append_prompt(*kv_numbers(manager, 0, 10))
    with pytest.raises(ValueError, match="holds 2 tokens from position 8 on; to be cached it must hold 4"):
        prefix_cache.keep_text(text(1, 2, 3), session.block_ids_per_layer)
    session.release()
    assert prefix_cache.lookup((*text(1, 2), 9)).num_tokens == 8
    assert prefix_cache.evict_one()
    assert prefix_cache.lookup((*text(1, 2), 9)).num_tokens == 4  # the second went, and not the first


# --- who goes first --------------------------------------------------------------------------------


def test_eviction_looks_at_a_block_in_use_once_a_round_and_not_each_time(monkeypatch):
    manager, prefix_cache = cache_of(text(1, 2, 3, 4, 5), *(text(i) for i in range(10, 20)))
    session = InferenceSession(manager, prefix_cache.lookup(text(1, 2, 3, 4, 5, 9)))
    for i in range(10, 20):
        prefix_cache.lookup(text(i, 9))
    looked, is_in_use = [], prefix_cache.is_in_use
    monkeypatch.setattr(prefix_cache, "is_in_use", lambda entry: looked.append(entry) or is_in_use(entry))
    for _ in range(10):
        assert prefix_cache.evict_one()
    assert len(looked) == 10 + 1 and prefix_cache.num_evicted == 10
    session.release()
