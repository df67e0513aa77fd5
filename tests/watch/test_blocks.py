"""Snapshots of who holds which blocks."""

import pytest
import torch
from helpers import make_engine

from labkit import SamplingParams, watch


@pytest.fixture
def engine(tiny):
    """Two requests and a cached prompt that share a full block and a partly filled one."""
    engine = make_engine(tiny, max_blocks_per_layer=16)
    prompt = [40, 41, 42, 43, 44]
    engine.generate([prompt], SamplingParams(max_new_tokens=1))
    for _ in range(2):
        engine.add_request(prompt, SamplingParams(max_new_tokens=30, stop_on_eos=False))
    engine.step()
    return engine


def test_snapshot_shows_sharing_and_then_copies(engine):
    shared = watch.snapshot(engine)
    assert [s.block_indices for s in shared.sequences] == [(0, 1)] * 3
    assert shared.lengths == {0: 4, 1: 1}
    assert [len(s.tokens) for s in shared.sequences] == [5, 5, 5]  # the last token made is not in the cache
    engine.step()
    copied = watch.snapshot(engine)
    assert [s.block_indices for s in copied.sequences] == [(0, 2), (0, 3), (0, 1)]
    assert copied.lengths == {0: 4, 1: 1, 2: 2, 3: 2}
    assert [len(s.tokens) for s in copied.sequences] == [6, 6, 5]


def test_snapshot_is_of_the_layer_asked_for(tiny):
    """A token in the last layer alone: there, all that follows lies one block further."""
    engine = make_engine(tiny, prefix_cache=False)
    manager, last = engine.kv_manager, tiny.config.n_layer - 1
    manager.append_token(last, [], *torch.zeros(2, tiny.config.n_head, tiny.config.head_dim))
    engine.add_request([40, 41, 42, 43, 44], SamplingParams(max_new_tokens=4))
    engine.step()
    places = [watch.snapshot(engine, layer_idx).sequences[0].block_indices for layer_idx in (0, last)]
    assert places == [(0, 1), (1, 2)]


def test_the_tables_of_a_live_engine(engine):
    num_layers = engine.kv_manager.num_layers
    assert watch.layer_tables(engine) == {1: [(0, 1)] * num_layers, 2: [(0, 1)] * num_layers}
