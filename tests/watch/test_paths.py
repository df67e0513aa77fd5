"""How the block of each token was made ready."""

import pytest
from helpers import make_engine

from labkit import LADDER, SamplingParams, watch
from labkit.watch.paths import READY_PATHS

PROMPTS = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [7, 8, 9]]


@pytest.fixture
def engine():
    """Rung 02: a cached prompt that two of three requests begin with."""
    engine = make_engine(options=LADDER["02"].options, block_size=4)
    engine.generate([PROMPTS[0]], SamplingParams(max_new_tokens=1))
    for prompt in PROMPTS:
        engine.add_request(prompt, SamplingParams(max_new_tokens=6, stop_on_eos=False))
    return engine


def test_paths_are_recorded_by_step_and_once_for_all_layers(engine):
    steps = watch.record_paths(engine, 6)
    none = dict.fromkeys(READY_PATHS, 0)
    assert steps == [
        none,  # admission
        {**none, "copy_on_write": 3},
        {**none, "in_place": 2, "boundary": 1},
        {**none, "in_place": 3},
        {**none, "in_place": 1, "boundary": 2},
        {**none, "in_place": 3},
    ]
