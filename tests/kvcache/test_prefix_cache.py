"""The prefix cache: texts never mix; what is found and evicted, see test_kvcache_stateful.py."""

import sys

import torch
from helpers import kv_numbers, make_manager

from labkit.engine import InferenceSession
from labkit.kvcache import PrefixCache

MODULUS = sys.hash_info.modulus  # whole numbers that differ by it have the same hash


def test_prompts_whose_hashes_are_the_same_never_mix():
    """What is looked up is the text itself; a hash only says where to look."""
    prompts = [(1, 2, 3), (1 + MODULUS, 2, 3), (1, 2 + MODULUS, 3), (1, 2, 3 + MODULUS)]
    assert len({hash(prompt) for prompt in prompts}) == 1 and len(set(prompts)) == 4
    manager = make_manager()
    prefix_cache = PrefixCache(manager, max_entries=9)
    for prompt in prompts[:2]:
        session = InferenceSession(manager)
        session.append_prompt(*kv_numbers(manager, 0, len(prompt)))
        prefix_cache.insert(prompt, session.block_ids_per_layer, torch.zeros(1))
        session.release()
    assert prefix_cache.lookup(prompts[2]) is None and prefix_cache.lookup(prompts[3]) is None
    held = [prefix_cache.lookup((*prompt, 7)) for prompt in prompts[:2]]
    assert [entry.token_ids for entry in held] == prompts[:2]
    assert held[0].block_ids_per_layer != held[1].block_ids_per_layer
    prefix_cache.evict_one()
    assert prefix_cache.lookup(prompts[0]) is None and prefix_cache.lookup(prompts[1]) is held[1]
    manager.check_integrity([held[1]])
