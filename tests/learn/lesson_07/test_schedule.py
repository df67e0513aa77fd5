"""Lesson 07: in a schedule with everything that moves blocks, all layers agree."""

import pytest
import torch

from labkit import LADDER
from labkit.learn.lesson_07 import engines
from labkit.learn.lesson_07.schedule import run_schedule

CPU = torch.device("cpu")
BELOW, THIS = LADDER["06"].options, LADDER["07"].options
ENGINES = {"rung 06": BELOW, "halfway": engines.HALFWAY, "rung 07": THIS}
LAYERS = 3


@pytest.fixture(scope="module")
def model():
    return engines.small_gpt2(n_layer=LAYERS)


@pytest.mark.parametrize("options", [BELOW, THIS], ids=["06", "07"])
def test_layers_agree_whatever_happens(model, options):
    seen = run_schedule(engines.schedule_engine(model, options, CPU))
    assert seen.steps == 60 and seen.different == 0 and seen.lists
    assert all(seen.events.values())  # a boundary, a copy, a preemption, an end: each was there


@pytest.mark.slow
def test_the_pool_is_used_alike(model):
    uses = [run_schedule(engines.schedule_engine(model, o, CPU)).uses for o in ENGINES.values()]
    assert uses[0] == uses[1] == uses[2]
    use = uses[0][0]  # one request of five tokens, in blocks of four; its prompt's blocks are also cached
    assert (use.tokens, use.empty_slots, use.free_blocks) == (5, 3, 8)
    assert any(u.free_blocks == 0 for u in uses[0])
