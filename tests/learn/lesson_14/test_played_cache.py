"""Texts that are written by hand into a small pool."""

import pytest
from helpers import build_of

from labkit.learn.exercise import BrokenContract
from labkit.learn.lesson_14.played_cache import PlayedCache

BUILD = build_of("14")
TEXT = (1, 2, 3, 4, 5, 6, 7, 8, 9)


def test_a_text_that_comes_and_goes_is_kept_in_its_blocks():
    played = PlayedCache(BUILD)
    block_ids = played.keep(TEXT)
    assert played.texts == [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8]]
    assert [played.written[block_id] for block_id in block_ids] == [TEXT[:4], TEXT[:8], TEXT]
    assert (played.found(TEXT, "it"), played.found(TEXT[:6], "it"), played.found(TEXT[1:], "it")) == (8, 4, 0)


def test_a_session_that_begins_with_another_shares_its_full_blocks():
    played = PlayedCache(BUILD)
    first = played.held(TEXT[:8])
    second = played.held(TEXT, begins=first)
    assert second.block_ids_per_layer[0][:2] == first.block_ids_per_layer[0]
    assert second.num_tokens == 9


def test_blocks_of_another_text_and_parts_of_blocks_are_refused():
    played = PlayedCache(BUILD)
    first, *_ = played.keep(TEXT)
    played.written[first] = (7, 7, 7, 7)
    with pytest.raises(BrokenContract, match=r"which was written for \[7, 7, 7, 7\]"):
        played.found(TEXT, "it")
    played.cache.lookup = lambda token_ids: type("Odd", (), {"block_ids_per_layer": [[0]], "num_tokens": 3})
    with pytest.raises(BrokenContract, match=r"it: of .* 3 tokens in 1 blocks are found"):
        played.found(TEXT, "it")


def test_with_one_key_for_all_only_the_first_block_is_kept():
    played = PlayedCache(BUILD, lambda parent_key, token_ids: 1)
    played.keep(TEXT)
    assert played.texts == [[1, 2, 3, 4]]
