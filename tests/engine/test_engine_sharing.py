"""Blocks that several hold are read by all and written by none, whatever comes, goes and is evicted."""

import random

import pytest
import torch
from helpers import GREEDY, SEEDED, engines_by_day, make_engine, tokens_alone

pytestmark = pytest.mark.slow

BEGINNING = tuple(range(40, 50))
PROMPTS = [BEGINNING[:n] + tail for n in (4, 6, 10) for tail in ((), (1,), (2, 3, 4, 5))]


def shared_numbers(engine) -> dict[int, torch.Tensor]:
    """Keys and values of every block with more than one holder, as far as it is filled."""
    manager = engine.kv_manager
    numbers = {}
    for block_id, info in manager.block_infos.items():
        if manager.refcount(block_id) > 1:
            place = manager.layers_of(info.layer), info.block_index, ..., slice(0, info.length), slice(None)
            numbers[block_id] = torch.stack([manager.k_cache[place], manager.v_cache[place]])
    return numbers


@engines_by_day
def test_what_is_shared_is_never_written_and_a_hit_gives_the_tokens_of_a_miss(options):
    dice = random.Random(3)
    engine = make_engine(options=options, max_blocks_per_layer=12, max_prefix_entries=4, max_batch_size=3)
    expected, received = {}, {}
    num_shared = 0
    for step in range(120):
        if step < 60 and dice.random() < 0.4:
            prompt, params = dice.choice(PROMPTS), dice.choice([GREEDY, SEEDED])
            request_id = engine.add_request(prompt, params)
            expected[request_id], received[request_id] = tokens_alone(prompt, params), ()
        before = shared_numbers(engine)
        for output in engine.step():
            received[output.request_id] += (output.token_id,)
        after = shared_numbers(engine)
        # Still shared, with as many tokens: only a last holder may add to a block.
        for block_id in before.keys() & after.keys():
            if before[block_id].shape == after[block_id].shape:
                num_shared += 1
                assert torch.equal(before[block_id], after[block_id]), f"block {block_id} was written"
        engine.check_integrity()  # an evicted prompt's blocks that somebody runs on are still counted
    assert not engine.has_work and received == expected
    stats = engine.stats()
    assert num_shared > 50 and stats.counters.reused_tokens > 50 and stats.prefix_evictions > 5
