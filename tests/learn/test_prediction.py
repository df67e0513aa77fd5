"""Predictions are scored by their factor, and whatever is guessed is a sentence."""

import numpy as np
import pytest

from labkit.learn import Prediction


@pytest.mark.parametrize(
    ("guess", "verdict"),
    [
        (None, "You made no prediction"),
        (48.001, "You said 48: exactly right."),
        (50, "You said 50: right, within 5 %."),
        (46, "You said 46: right, within 5 %."),
        (51, "within a factor of 2"),
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
        (0, 0, "You said 0: exactly right."),
        (-1.5, -1.57, "You said -1.5: right, within 5 %."),
        (3, -1.581, "You said 3: off by 4.581."),
        (10**400, 48, "is no number"),
        ("many", 48, "Your guess, 'many', is no number"),
        (float("nan"), 48, "is no number"),
        (np.float32(40), 48, "You said 40: within a factor of 2."),
    ],
)
def test_any_guess_is_scored_where_there_is_no_factor_too(guess, actual, verdict):
    assert verdict in Prediction("Calls", "calls", guess).score(actual)


@pytest.mark.parametrize(
    ("guess", "verdict"),
    [
        (1, "You said 1, a gain of 0 % where it was 54 %: off by 54."),
        (1.2, "a gain of 20 % where it was 54 %: off by a factor of 2.7."),
        (1.52, "a gain of 52 % where it was 54 %: right, within 5 %."),
    ],
)
def test_of_an_answer_that_is_a_factor_the_gain_is_scored(guess, verdict):
    assert verdict in Prediction("Rung 02 over rung 01", "times", guess).score(1.54)


def test_a_large_factor_is_scored_as_it_is():
    assert "You said 14.5: exactly right." in Prediction("Pieces", "times", 14.5).score(14.5)
