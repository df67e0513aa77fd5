"""What holds for both caches of prefixes: how the engine tells them what was computed, and what they hold."""

import pytest
import torch
from helpers import holds, kv_numbers, make_manager, num_freeable

from labkit.engine import InferenceSession
from labkit.kvcache import BlockPrefixCache, OneTableBlockManager, PrefixCache

PROMPT = tuple(range(8))
KINDS = {"whole prompts": lambda manager: PrefixCache(manager, 9), "blocks": BlockPrefixCache}


@pytest.fixture
def session():
    """It has computed the prompt."""
    manager = make_manager(OneTableBlockManager, max_blocks_per_layer=20)
    session = InferenceSession(manager)
    session.append_prompt(*kv_numbers(manager, 0, len(PROMPT)))
    return session


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def prefix_cache(request, session):
    return request.param(session.kv_manager)


def test_a_prompt_that_was_computed_is_found_by_one_that_goes_on_from_it(prefix_cache, session):
    manager = session.kv_manager
    prefix_cache.insert(PROMPT, session.block_ids_per_layer, torch.zeros(3))
    manager.check_integrity([session, *prefix_cache])
    assert num_freeable(prefix_cache) == 0
    session.release()
    assert num_freeable(prefix_cache) == 2 and manager.num_free_blocks == 18
    found = prefix_cache.lookup((*PROMPT, 9))
    assert found.num_tokens == 8 and holds(InferenceSession(manager, found), (0, 8))
    assert max(entry.text for entry in prefix_cache) == PROMPT


def test_a_prefix_whose_logits_are_known_is_a_whole_prompt(prefix_cache, session):
    prefix_cache.insert(PROMPT, session.block_ids_per_layer, torch.ones(3))
    found = prefix_cache.lookup(PROMPT)
    if isinstance(prefix_cache, PrefixCache):
        assert found.num_tokens == 8 and found.last_logits.tolist() == [1, 1, 1]
    else:
        assert found.num_tokens == 4 and found.last_logits is None


def test_only_blocks_are_kept_of_what_is_no_whole_prompt(prefix_cache, session):
    prefix_cache.insert(PROMPT, session.block_ids_per_layer)
    prefix_cache.keep_text(PROMPT, session.block_ids_per_layer)
    is_kept = isinstance(prefix_cache, BlockPrefixCache)
    assert len(prefix_cache) == 2 * is_kept
    assert prefix_cache.is_coming((1,) * 9, [(1,) * 9]) is is_kept
    prefix_cache.forget(session.block_ids_per_layer)
    assert len(prefix_cache) == 0
    session.kv_manager.check_integrity([session])
