"""Lesson 07: what a step, a copy and the bookkeeping cost, counted."""

import pytest
import torch

from labkit import LADDER, lab
from labkit.kvcache import MutableInfoBlockManager, OneTableBlockManager
from labkit.learn.lesson_07 import engines
from labkit.learn.lesson_07.work import (
    STEPS,
    begin_operators,
    copied_pool,
    copies_on_write,
    manager_state,
    reserved,
    step_work,
)
from labkit.watch.work import COUNTS

CPU = torch.device("cpu")
BELOW, THIS = LADDER["06"].options, LADDER["07"].options
ENGINES = {"rung 06": BELOW, "halfway": engines.HALFWAY, "rung 07": THIS}
LAYERS = 3


@pytest.fixture(scope="module")
def model():
    return engines.small_gpt2(n_layer=LAYERS)


def test_the_books_of_a_step_are_as_many_times_less_as_there_are_layers(model):
    counted = step_work(model, ENGINES, CPU)
    assert (counted["halfway"] == counted["rung 07"]).all()
    join, usual, boundary = (counted.loc[step] for step in STEPS)
    assert list(join.index) == list(COUNTS)
    assert join["rung 07"][list(COUNTS[:4])].tolist() == [1, 8, 8, 8]  # eight requests
    assert join.loc[COUNTS[4], "times less"] == "1"
    assert list(usual.index) == list(COUNTS[:2])
    assert boundary.loc[COUNTS[5]].tolist() == [8 * LAYERS, 8, 8, f"{LAYERS}"]
    scaled = counted.drop([(STEPS[0], COUNTS[4]), (STEPS[0], COUNTS[6]), (STEPS[2], COUNTS[6])])
    assert set(scaled["times less"]) == {f"{LAYERS}"}


def test_the_books_hold_less_and_the_pool_is_the_same(model):
    states = {}
    for name, options in ENGINES.items():
        engine = engines.sharing_engine(model, options, CPU)
        engine.step()
        states[name] = manager_state(engine)
    for what, size in states["rung 07"].items():
        times = 1 if what in ("tokens in the cache", "bytes of the pool") else LAYERS
        assert (states["rung 06"][what], states["halfway"][what]) == (times * size, size)


def test_one_copy_serves_all_layers():
    one_a_layer, one = map(copied_pool, (MutableInfoBlockManager, OneTableBlockManager))
    assert one_a_layer["layers whose copy is right"] == one["layers whose copy is right"] == 12
    assert one_a_layer["calls of reserve_token_batch"] == 12 * one["calls of reserve_token_batch"] == 12
    assert one_a_layer["operators dispatched"] > one["operators dispatched"]


@pytest.mark.parametrize(("new_tokens", "copies"), [(1, 0), (2, 8), (5, 8)])
@pytest.mark.parametrize("options", [BELOW, THIS], ids=["06", "07"])
def test_one_new_token_copies_nothing(model, options, new_tokens, copies):
    engine = engines.schedule_engine(model, options, CPU, max_blocks=64)
    assert copies_on_write(engine, [1, 2, 3, 4, 5, 6], new_tokens) == copies


def test_nothing_is_left_to_prepare_before_the_first_layer(model):
    operators = {
        name: begin_operators(engines.schedule_engine(model, o, CPU), [[1, 2, 3]] * 3)
        for name, o in ENGINES.items()
    }
    assert operators["rung 06"] == operators["halfway"] > operators["rung 07"] == 0


def test_reservations_are_counted_or_the_error_is_told():
    here = lab.start("07")
    words = reserved(here.build(layer_tables=OneTableBlockManager))
    assert words == "reserve_token_batch: called 1 times in a step of 8 requests, 8 lists looked at"
    assert "called 6 times" in reserved(here.build(layer_tables=MutableInfoBlockManager))
    words = reserved(here.build(layer_tables=Broken))
    assert words.startswith("reservations: not counted, because the engine raised KeyError: 'nothing'")


class Broken(OneTableBlockManager):
    def reserve_token_batch(self, table_idx, block_ids_list):
        raise KeyError("nothing")
