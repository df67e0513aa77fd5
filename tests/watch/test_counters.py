"""What the counters say: how blocks were made ready, which slots a batch writes to, and by which write."""

import pytest
import torch
from helpers import make_engine, small_model

from labkit import LADDER, SamplingParams, watch
from labkit.learn.lesson_04.writes import watch_positions
from labkit.watch.counters import READY_PATHS

RUNG = LADDER["04"].options


def test_recording_needs_work_and_one_write_a_layer():
    engine = make_engine(options=RUNG, block_size=8)
    engine.add_request([1, 2, 3], SamplingParams(max_new_tokens=3, stop_on_eos=False))
    with pytest.raises(ValueError, match="ended after 2 of 5"):
        watch.record_positions(engine, 5)
    with pytest.raises(ValueError, match=r"writes \[\]"):
        watch_positions(small_model(), LADDER["00"].options, torch.device("cpu"), (3, 3))


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
