"""Lesson 07: what a failed reservation and a failed forward leave behind."""

import pytest
import torch
from helpers import run, tokens_by_request

from labkit import LADDER
from labkit.learn.lesson_07 import engines
from labkit.learn.lesson_07.failures import fail_the_forward, fail_to_reserve

CPU = torch.device("cpu")
BELOW, THIS = LADDER["06"].options, LADDER["07"].options
LAYERS = 3


@pytest.fixture(scope="module")
def model():
    return engines.small_gpt2(n_layer=LAYERS)


@pytest.mark.parametrize(("number", "forwards"), [("00", 1), ("05", 1), ("06", 0), ("07", 0)])
def test_a_failed_reservation_changes_nothing(model, number, forwards):
    left = fail_to_reserve(model, LADDER[number].options, CPU)
    assert list(left.values()) == ["OutOfBlocksError", forwards, (1, 1), [4]]


@pytest.mark.parametrize("options", [BELOW, THIS], ids=["06", "07"])
def test_a_failed_forward_gives_the_reservation_back(model, options):
    engine, undisturbed = (engines.sharing_engine(model, options, CPU) for _ in range(2))
    seen = fail_the_forward(engine)
    assert seen == {
        "booked when it fails": [7] * 8,
        "counted when it fails": [6] * 8,
        "booked afterwards": [6] * 8,
        "counted afterwards": [6] * 8,
    }
    engine.check_integrity()
    assert tokens_by_request(run(engine)) == tokens_by_request(run(undisturbed))
