"""Predictions are scored, and exercises say what is wrong."""

import functools
import re
import statistics
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch

from labkit.learn import BrokenContract, Case, Exercise, Prediction, not_attempted
from labkit.learn.answers import difference
from labkit.learn.exercise import EndlessLoop, answer_of, limited_lines
from labkit.learn.lesson_00 import LOCATE


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


def test_a_crash_in_an_attempt_is_told():
    verdict = LOCATE.grade(lambda position, block_table, block_size: block_table[99])
    assert "raised IndexError" in verdict


def test_an_attempt_that_changes_its_arguments_spoils_no_case():
    def eats_the_table(position, block_table, block_size):
        block_table.clear()
        return None

    assert "changed its argument block_table to []" in LOCATE.grade(eats_the_table)
    assert LOCATE.grade(LOCATE.solution).endswith("right, all 6 cases.")


# --- a grader never raises, and says what is wrong -----------------------------------------------------


def add(numbers, more):
    return [a + b for a, b in zip(numbers, more, strict=True)]


def two_lists(rng):
    size = rng.randrange(5)
    return {name: [rng.randrange(9) for _ in range(size)] for name in ("numbers", "more")}


ADD = Exercise(
    "add",
    (
        Case({"numbers": [1], "more": [2]}, [3], "Add them one by one."),
        Case({"numbers": [0.1, 5], "more": [0.2, 5]}, [0.3, 10], "All of them."),
    ),
    add,
    two_lists,
    "Each number has its own partner.",
)


@pytest.mark.parametrize(
    "attempt",
    [
        lambda numbers, more: tuple(add(numbers, more)),
        lambda numbers, more: np.array(numbers) + np.array(more),
        lambda numbers, more: torch.tensor(numbers) + torch.tensor(more),
        lambda numbers, more: [np.float64(x) for x in add(numbers, more)],
        functools.partial(add),
    ],
)
def test_a_right_answer_is_right_in_any_clothes(attempt):
    assert ADD.grade(attempt) == "add: right, all 2 cases."


def changes_its_argument(numbers, more):
    for i, b in enumerate(more):
        numbers[i] += b
    return numbers


def never_ends(numbers, more):
    while True:
        pass


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (None, "add: expected a function, not None."),
        (3, "add: expected a function, not 3."),
        pytest.param(10**5000, "add: expected a function, not a number of 16610 bits.", id="huge"),
        (
            lambda numbers, more: None,
            "gave None, expected [3]. (A function without `return` gives None.) Add",
        ),
        (lambda numbers, more: {3}, "gave {3}, a set, where a list or a tuple was expected [3]. Add them"),
        (lambda numbers, more: (x for x in [3]), "a generator, where a list or a tuple was expected [3]."),
        (lambda numbers, more: "3", "gave '3', a str, where a list"),
        (lambda numbers, more: np.array([[3]]), "gave array([[3]]), expected [3]. Add them one by one."),
        (lambda numbers, more: [numbers[0] + more[0]], "(1 of 2 cases passed)"),
        (
            lambda numbers, more: [*add(numbers, more)[:2], *[0] * (len(more) - 2)],
            "own partner. (all 2 cases",
        ),
        (changes_its_argument, "changed its argument numbers to [3]. Leave what you are given as it is."),
        (never_ends, "has run 1,000,000 lines without an end. Is there a loop that never stops?"),
        (lambda numbers, more: 1 / 0, "raised ZeroDivisionError: division by zero. (0 of 2 cases passed)"),
        (lambda numbers, more: sys.exit(1), "raised SystemExit: 1."),
        (lambda numbers, more: ADD.solution(numbers), "raised TypeError: add() missing 1 required"),
        (lambda numbers: numbers, "raised TypeError"),
    ],
)
def test_whatever_an_attempt_does_its_verdict_is_a_sentence(attempt, sentence):
    assert sentence in ADD.grade(attempt)


def test_an_attempt_that_is_half_written_is_not_attempted_yet():
    def half(numbers, more):
        return add(numbers, more) if len(numbers) in (1, 2) else not_attempted()

    assert ADD.grade(half) == "add: not attempted yet."


def test_lines_of_installed_packages_are_no_endless_loop():
    with limited_lines(100):
        assert statistics.fmean(Fraction(n) for n in range(50)) == 24.5
    with pytest.raises(EndlessLoop), limited_lines(100):
        never_ends([], [])


def test_the_first_random_call_that_fails_is_a_short_one():
    verdict = ADD.grade(lambda numbers, more: [*add(numbers, more)[:2], *more[2:]])
    assert re.search(r"\(numbers=\[\d, \d, \d\], more=\[\d, \d, \d\]\) gave", verdict)


def test_the_readers_own_interrupt_is_not_caught():
    def interrupted(numbers, more):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ADD.grade(interrupted)


def test_an_argument_that_is_changed_in_play_is_told():
    def played(attempt, numbers, more):
        return {"the sum": answer_of(attempt, numbers=numbers, more=more)}

    case = Case({"numbers": [1], "more": [2]}, {"the sum": [3]}, "Add them.")
    exercise = Exercise("add", (case,), None, play=played)
    assert exercise.grade(add) == "add: right, all 1 cases."
    verdict = "add: with numbers=[1], more=[2], it changed its argument numbers to [3]."
    assert exercise.grade(changes_its_argument).startswith(verdict)


def test_an_exercise_that_is_played_is_told_by_what_was_seen():
    def played(attempt, balls):
        box = list(balls)
        attempt(box)
        if len(box) > 5:
            raise BrokenContract("the box holds five balls.")
        return {"the box": box, "how many": len(box)}

    exercise = Exercise("put", (Case({"balls": [1]}, {"the box": [1, 2]}, "Put a 2 in."),), None, play=played)
    assert exercise.grade(lambda box: box.append(2)) == "put: right, all 1 cases."
    wrong = "put: with balls=[1], the box: [1], expected [1, 2]. Put a 2 in. (0 of 1 cases passed)"
    assert exercise.grade(lambda box: None) == wrong
    assert "with balls=[1], the box holds five balls." in exercise.grade(lambda box: box.extend(range(9)))


def test_of_dictionaries_the_first_item_that_differs_is_told():
    expected = {"sent": True, "rows": ["A"]}
    assert difference({"sent": True, "rows": {"A"}}, expected).startswith(
        "'rows': {'A'}, a set, where a list"
    )
    assert difference({"sent": True}, expected) == f"{{'sent': True}}, expected {expected}."


@pytest.mark.parametrize(
    ("answer", "expected", "same"),
    [
        (10**15 + 1, 10**15, False),
        (1e9, 10**9, True),
        (0.1 + 0.2, 0.3, True),
        (0.301, 0.3, False),
        (True, 1, True),
        ("1", 1, False),
        ({"a": (1,)}, {"a": [1]}, True),
        ({"a": [1], "b": 2}, {"a": [1]}, False),
        (range(3), [0, 1, 2], True),
        ({1, 2}, {2, 1}, True),
        ([1, 2], {1, 2}, False),
        (float("nan"), 1.0, False),
        (None, 0, False),
    ],
)
def test_answers_are_compared_by_what_they_hold(answer, expected, same):
    assert (difference(answer, expected) == "") == same
