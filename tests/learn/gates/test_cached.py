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


def test_a_length_that_is_ahead_is_told_with_its_block(engine):
    block_id = block_of(engine, 1, 1, 0)
    engine.kv_manager.set_length(block_id, 3)
    assert wrong_record(engine) == (
        f"layer 1, request 1, block {block_id} (place 0): length is 3, expected 4."
    )


def test_a_block_too_many_is_told(engine):
    next(iter(engine.scheduler.running.values())).block_ids_per_layer[0].append(0)
    assert wrong_record(engine) == ("layer 0, request 0 holds 3 blocks for 7 tokens, expected 2 of 4 slots.")


def test_a_token_of_another_request_is_named(engine):
    manager = engine.kv_manager
    to, of = (manager.info(block_of(engine, request, 1, 0)).block_index for request in (0, 1))
    with torch.inference_mode():
        manager.k_cache[1, to, :, 2] = manager.v_cache[1, of, :, 1]
    block_id = block_of(engine, 0, 1, 0)
    assert wrong_number(engine) == (
        f"layer 1, request 0, token 2 (slot 2 of block {block_id}): its key there is the value of request "
        "1's token 1 in layer 1, expected the key of request 0's token 2 in layer 1."
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
