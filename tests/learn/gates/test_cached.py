"""What is off in a cache: the place, what is there, and what should be."""

import pytest
import torch
from helpers import make_engine

from labkit import LADDER, SamplingParams
from labkit.learn.gates.cached import whose, wrong_number, wrong_record

PROMPTS = ((1, 2, 3, 4, 5, 6), (7, 8, 9))


@pytest.fixture(params=["00", "05"])
def engine(request):
    """Two requests, after a decode step on blocks of 4."""
    engine = make_engine(options=LADDER[request.param].options, block_size=4)
    for prompt in PROMPTS:
        engine.add_request(prompt, SamplingParams(9, stop_on_eos=False))
    engine.step()
    engine.step()
    return engine


def block_of(engine, request: int, layer_idx: int, place: int) -> int:
    session = list(engine.scheduler.running.values())[request]
    return session.block_ids_per_layer[layer_idx][place]


def test_nothing_is_off_in_an_engine_that_runs(engine):
    assert (wrong_record(engine), wrong_number(engine)) == ("", "")


def test_a_block_too_many_is_told(engine):
    held = next(iter(engine.scheduler.running.values())).block_ids_per_layer[0]
    held.append(0)
    assert wrong_record(engine) == (
        f"layer 0, request 0 holds the blocks {held} for 7 tokens, expected 2 of 4 slots."
    )


def test_what_is_nobodys_is_told_by_its_first_numbers(engine):
    zeros = torch.zeros(engine.kv_manager.k_cache[0, 0, :, 0].shape)
    assert whose(zeros, engine) == "zeros"
    assert whose(zeros + 0.123, engine) == "none of any request that runs, beginning with [0.12, 0.12]"


def test_a_number_that_is_none_is_off(engine):
    block_index = engine.kv_manager.info(block_of(engine, 0, 0, 1)).block_index
    with torch.inference_mode():
        engine.kv_manager.v_cache[0, block_index, 0, 0, 0] = torch.nan
    assert "token 4 (slot 0 of block" in wrong_number(engine)
