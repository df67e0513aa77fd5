"""Predictions are scored by their factor, and whatever is guessed is a sentence."""

import math

import numpy as np
import pytest
import torch

from labkit.learn import Prediction
from labkit.learn.prediction import factor_off


@pytest.mark.parametrize(
    ("guess", "verdict"),
    [
        (None, "You made no prediction"),
        (30, "within a factor of 2"),
        (96, "within a factor of 2"),
        (24, "within a factor of 2"),
        (120, "off by a factor of 2.5"),
        (20, "off by a factor of 2.4"),
        (4800, "off by a factor of 100"),
    ],
)
def test_prediction_scores(guess, verdict):
    score = Prediction("Calls", "calls", guess).score(48)
    assert score.startswith("Calls: 48 calls.") and verdict in score


@pytest.mark.parametrize(
    ("guess", "actual", "verdict"),
    [
        (0, 48, "You said 0: off by 48."),
        (2, 0, "You said 2: off by 2."),
        (0, 0, "You said 0: right."),
        (-1.5, -1.581, "You said -1.5: right."),
        (3, -1.581, "You said 3: off by 4.581."),
        (10**400, 48, "is no number"),
        pytest.param(10**5000, 48, "Your guess, a number of 16610 bits, is no number", id="huge"),
        (torch.tensor(40.0, device="meta"), 48, "is no number"),
        ("many", 48, "Your guess, 'many', is no number"),
        (float("nan"), 48, "is no number"),
        (np.float32(40), 48, "You said 40: within a factor of 2."),
    ],
)
def test_any_guess_is_scored_where_there_is_no_factor_too(guess, actual, verdict):
    assert verdict in Prediction("Calls", "calls", guess).score(actual)


@pytest.mark.parametrize(
    ("guess", "verdict"), [(24, "within"), (96, "within"), (97, "factor of 2.02"), (23, "2.09")]
)
def test_a_factor_of_two_is_right_and_more_is_not(guess, verdict):
    assert verdict in Prediction("Calls", "calls", guess).score(48)


@pytest.mark.parametrize(
    ("guess", "actual", "factor"),
    [
        (24, 48, 2),
        (48, 24, 2),
        (48, 48, 1),
        (0, 0, 1),
        (-1.5, -1.581, 1),
        (0, 48, math.inf),
        (-3, 3, math.inf),
    ],
)
def test_the_factor_by_which_a_guess_is_off(guess, actual, factor):
    assert factor_off(guess, actual) == factor
