"""What the host tells the GPU of rung 05."""

import pytest
from prefilled_engines import BELOW, PROMPTS, THIS, prefilled

from labkit import watch


def test_all_numbers_of_a_step_are_noted():
    engine = prefilled(BELOW)
    (told,) = watch.record_inputs(engine, 1)
    layers, places = engine.kv_manager.num_layers, engine.kv_manager.max_blocks_per_seq
    assert {name: len(numbers) for name, numbers in told.items()} == {
        "block tables": layers * len(PROMPTS) * places,
        "context lengths": 3,
        "token ids": 3,
        "positions": 3,
        "block_idx of each layer": 3 * layers,
        "pos of each layer": 3 * layers,
    }
    assert told["positions"] == [3, 2, 5] and told["pos of each layer"] == [3, 2, 1] * layers


def test_equal_positions_are_an_argument_and_no_tensor():
    engine = prefilled(BELOW, [(1, 2, 3), (4, 5, 6)])
    (told,) = watch.record_inputs(engine, 1)
    assert "pos of each layer" not in told


def test_an_engine_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="record_sends"):
        watch.record_inputs(prefilled(THIS), 1)
