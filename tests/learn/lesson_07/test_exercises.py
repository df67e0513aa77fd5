"""Lesson 07: the solutions of its exercises say what the package does."""

import pytest
import torch
from prefilled_engines import prefilled

from labkit import LADDER
from labkit.engine import InferenceSession
from labkit.kvcache import KVBlockManager, OneTableBlockManager
from labkit.learn.lesson_07.exercises import BLOCKS_NEEDED, append_all_layers
from labkit.watch.blocks import block_places

THIS = LADDER["07"].options


def test_the_append_of_all_layers_is_the_engine_s():
    """The keys of a real step, taken from rung 07's pool, stored again by the exercise's solution."""
    engine = prefilled(THIS, prompts=[(1, 2, 3, 4, 5), (6, 7, 8, 9, 1, 2)])
    sessions = list(engine.scheduler.running.values())
    lengths = [session.num_tokens for session in sessions]
    engine.step()
    rows = [block_places(engine, session)[0] for session in sessions]
    manager, b = engine.kv_manager, range(len(rows))
    block = [row[n // 4] for row, n in zip(rows, lengths, strict=True)]
    pos = [n % 4 for n in lengths]
    keys = torch.stack([manager.k_cache[:, block[i], :, pos[i]] for i in b], dim=1)  # [L, B, H, D]
    stored = manager.k_cache.clone()
    for i in b:
        stored[:, block[i], :, pos[i]] = 0
    append_all_layers(stored, torch.tensor(rows), torch.tensor(lengths), keys)
    assert torch.equal(stored, manager.k_cache)


@pytest.mark.parametrize("kind", [KVBlockManager, OneTableBlockManager])
@pytest.mark.parametrize("seed", range(20))
def test_the_blocks_needed_are_those_that_a_reservation_takes(kind, seed):
    """Sessions of random lengths, some of them forks of others."""
    generator = torch.Generator().manual_seed(seed)

    def randint(high):
        return int(torch.randint(high, (), generator=generator))

    manager = kind(num_layers=2, num_heads=1, head_dim=1, block_size=4, max_blocks_per_layer=64)
    sessions = [InferenceSession(manager) for _ in range(4)]
    for session in sessions:
        numbers = torch.zeros(2, 1, randint(10), 1)
        session.append_prompt(numbers, numbers)
    sessions += [sessions[randint(4)].fork() for _ in range(4)]
    lists = [session.block_ids_per_layer[0] for session in sessions]
    sequences = [(s.num_tokens, ids[-1] if ids else None) for s, ids in zip(sessions, lists, strict=True)]
    holders = {i: manager.refcount(i) for ids in lists for i in ids}
    free = manager.num_free(0)
    if kind is KVBlockManager:
        manager.append_token_batch(0, lists, torch.zeros(8, 1, 1), torch.zeros(8, 1, 1))
    else:
        manager.reserve_token_batch(0, lists)
    assert BLOCKS_NEEDED.solution(sequences, holders, 4) == free - manager.num_free(0)
