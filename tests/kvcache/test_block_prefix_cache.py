"""The block prefix cache alone: what is found, what is kept, what goes first; and texts that never mix."""

import pytest
from helpers import holds, kv_numbers, make_manager

from labkit.engine import InferenceSession
from labkit.kvcache import BlockPrefixCache, OneTableBlockManager
from labkit.kvcache.block_prefix_cache import ROOT_KEY


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


def texts_in(prefix_cache):
    return [entry.text for entry in prefix_cache]


def text(*beginnings):
    """A text of blocks, each of which is four times one token."""
    return tuple(token_id for token_id in beginnings for _ in range(4))


# --- found -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "num_found"),
    [
        ((1, 2, 3, 4, 5, 6, 7, 8, 9), 8),
        ([1, 2, 3, 4, 5, 6, 7, 8], 4),  # its last token is to be computed
        ((1, 2, 3, 4, 5), 4),
        ((1, 2, 3, 4, 50, 6, 7, 8, 9), 4),
        ((1, 2, 3, 4), 0),
        ((10, 2, 3, 4, 5, 6, 7, 8, 9), 0),  # its second block is cached, but behind another
        ((), 0),
    ],
)
def test_lookup_finds_the_full_blocks_that_a_text_begins_with_but_never_its_last_token(prompt, num_found):
    manager, prefix_cache = cache_of((1, 2, 3, 4, 5, 6, 7, 8, 9, 10))  # of which two tokens fill no block
    assert len(prefix_cache) == 2 and manager.num_free_blocks == 18
    found = prefix_cache.lookup(prompt)
    assert (found.num_tokens if found else 0) == num_found
    if found:
        assert found.last_logits is None
        session = InferenceSession(manager, found)
        assert holds(session, (0, num_found))
        manager.check_integrity([session, *prefix_cache])


def test_a_block_that_is_not_full_is_never_kept():
    manager, prefix_cache = cache_of()
    session = InferenceSession(manager)
    session.append_prompt(*kv_numbers(manager, 0, 7))
    prefix_cache.keep_text(range(7), session.block_ids_per_layer)
    assert texts_in(prefix_cache) == [(0, 1, 2, 3)]
    with pytest.raises(
        ValueError, match="holds 3 tokens from position 4 on; to be cached it must hold 4 from"
    ):
        prefix_cache.keep_text(range(8), session.block_ids_per_layer)
    with pytest.raises(ValueError, match=r"holds 4 tokens from position 0 on; .* must hold 4 from 4 on"):
        prefix_cache.keep_text(range(8), [session.block_ids_per_layer[0][:1] * 2])
    assert len(prefix_cache) == 1
    manager.check_integrity([session, *prefix_cache])


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
        assert not prefix_cache.is_coming(question, [])
        assert prefix_cache.lookup(question).num_tokens == 12
        compute(prefix_cache, manager, question, first=0).release()
    assert prefix_cache.hashed == 3 + 5 * 3  # the block of its own: asked for, looked up, kept
    prefix_cache.clear()
    assert prefix_cache.lookup((*text(1, 2, 3), 9)) is None
    assert prefix_cache.lookup((*text(9), 9)) is None


# --- hashes ----------------------------------------------------------------------------------------


def test_a_key_is_made_of_the_key_before_and_of_all_token_ids():
    _, prefix_cache = cache_of()
    key = prefix_cache.block_key(ROOT_KEY, (1, 2, 3, 4))
    assert key == prefix_cache.block_key(ROOT_KEY, (1, 2, 3, 4))
    others = [(ROOT_KEY, (1, 2, 3, 5)), (ROOT_KEY, (2, 1, 3, 4)), (key, (1, 2, 3, 4))]
    assert len({key, *(prefix_cache.block_key(*other) for other in others)}) == 4


# --- who goes first --------------------------------------------------------------------------------


def test_whether_so_many_can_go_is_seen_without_a_look_at_all(monkeypatch):
    """In a pool of thousands of blocks a look at all takes longer than a decode step."""
    _, prefix_cache = cache_of(*(text(i) for i in range(10)))
    looked, is_in_use = [], prefix_cache.is_in_use
    monkeypatch.setattr(prefix_cache, "is_in_use", lambda entry: looked.append(entry) or is_in_use(entry))
    assert prefix_cache.can_free(3) and len(looked) == 3
    assert prefix_cache.can_free(10) and not prefix_cache.can_free(11)


def test_eviction_looks_at_a_block_in_use_once_a_round_and_not_each_time(monkeypatch):
    manager, prefix_cache = cache_of(text(1, 2, 3, 4, 5), *(text(i) for i in range(10, 20)))
    session = InferenceSession(manager, prefix_cache.lookup(text(1, 2, 3, 4, 5, 9)))
    for i in range(10, 20):
        prefix_cache.lookup(text(i, 9))
    looked, is_in_use = [], prefix_cache.is_in_use
    monkeypatch.setattr(prefix_cache, "is_in_use", lambda entry: looked.append(entry) or is_in_use(entry))
    for _ in range(10):
        assert prefix_cache.evict_one()
    assert len(looked) == 10 + 1
    session.release()


# --- forgotten, cleared ----------------------------------------------------------------------------


def test_clear_drops_blocks_in_use_too_and_counts_them():
    manager, prefix_cache = cache_of(text(1, 2), text(3))
    session = InferenceSession(manager, prefix_cache.lookup(text(1, 2, 9)))
    prefix_cache.clear()
    assert (len(prefix_cache), prefix_cache.num_evicted, manager.num_free_blocks) == (0, 3, 18)
    assert holds(session, (0, 8))
    manager.check_integrity([session])


# --- what is being computed ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("computing", "is_coming"),
    [
        ([], False),
        ([text(1, 2, 7)], True),  # its second block
        ([text(8), text(1, 2)], True),
        ([text(1)], False),  # cached already
        ([text(1, 3)], False),
        ([text(3, 2)], False),  # the same ids behind others
        ([(*text(1), 2, 2)], False),  # no full block
    ],
)
def test_a_text_waits_for_its_next_block_if_somebody_computes_it(computing, is_coming):
    _, prefix_cache = cache_of(text(1), text(2))
    assert prefix_cache.is_coming(text(1, 2, 3), computing) is is_coming
    assert not prefix_cache.is_coming(text(1, 2), computing)  # nobody waits for the block of their last token
    assert texts_in(prefix_cache) == [text(1), text(2)]  # to ask is no use of them
