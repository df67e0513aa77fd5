"""Which slots a batch writes to, and by which write."""

import pytest
import torch
from helpers import make_engine, small_model

from labkit import LADDER, SamplingParams, watch
from labkit.learn.lesson_04.writes import watch_positions
from labkit.watch.positions import write_path

RUNG = LADDER["04"].options


def test_recording_needs_work_and_one_write_a_layer():
    engine = make_engine(options=RUNG, block_size=8)
    engine.add_request([1, 2, 3], SamplingParams(max_new_tokens=3, stop_on_eos=False))
    with pytest.raises(ValueError, match="ended after 2 of 5"):
        watch.record_positions(engine, 5)
    with pytest.raises(ValueError, match=r"writes \[\]"):
        watch_positions(small_model(), LADDER["00"].options, torch.device("cpu"), (3, 3))
    with pytest.raises(ValueError, match=r"\['generic', 'indexed'\]"):
        write_path({"in_place": 1}, {"in_place": 3, "generic": 1, "indexed": 1})
