"""A grader never raises, and says what is wrong."""

import re
import statistics
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch

from labkit.learn import BrokenContract, Exercise, not_attempted
from labkit.learn.exercise import EndlessLoop, answer_of, limited_lines


def add(numbers, more):
    return [a + b for a, b in zip(numbers, more, strict=True)]


def two_lists(rng):
    size = rng.randint(1, 5)
    return {name: [rng.randrange(9) for _ in range(size)] for name in ("numbers", "more")}


ADD = Exercise(add, two_lists, "Add each number to its own partner.")


@pytest.mark.parametrize(
    "attempt",
    [
        lambda a, b: tuple(add(a, b)),
        lambda numbers, more: np.array(numbers) + np.array(more),
        lambda numbers, more: torch.tensor(numbers) + torch.tensor(more),
        lambda numbers, more: [np.float64(x) for x in add(numbers, more)],
        lambda renamed, others: add(renamed, others),
    ],
)
def test_a_right_answer_is_right_in_any_clothes(attempt):
    assert ADD.grade(attempt) == "add: right, in all 100 random calls."


def changes_its_argument(numbers, more):
    for i, b in enumerate(more):
        numbers[i] += b
    return numbers


def never_ends(numbers, more):
    while True:
        pass


def never_ends_in_a_line(numbers, more):
    while True: pass  # fmt: skip  # noqa: E701


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (3, "raised TypeError: 'int' object is not callable."),
        (
            lambda numbers, more: None,
            "gave None, expected [11]. (A function without `return` gives None.)",
        ),
        (lambda numbers, more: {3}, "gave {3}, expected [11]. Add each"),
        (lambda numbers, more: np.array([[3]]), "gave array([[3]]), expected [11]. Add each number"),
        (changes_its_argument, "changed its argument numbers to [11]. Leave what you are given as it is."),
        (never_ends, "has run 1,000,000 lines without an end. Is there a loop that never stops?"),
        (never_ends_in_a_line, "has run 1,000,000 lines without an end. Is there a loop that never stops?"),
        (lambda numbers, more: 1 / 0, "raised ZeroDivisionError: division by zero. Add each number"),
        (lambda numbers, more: sys.exit(1), "raised SystemExit: 1."),
        (lambda numbers, more: ADD.solution(numbers), "raised TypeError: add() missing 1 required"),
        (lambda numbers: numbers, "raised TypeError"),
    ],
)
def test_whatever_an_attempt_does_its_verdict_is_a_sentence(attempt, sentence):
    assert sentence in ADD.grade(attempt)


def test_an_attempt_that_is_half_written_is_not_attempted_yet():
    def half(numbers, more):
        return add(numbers, more) if len(numbers) < 3 else not_attempted()

    assert ADD.grade(half) == "add: not attempted yet."


def test_lines_of_installed_packages_are_no_endless_loop():
    with limited_lines(100):
        assert statistics.fmean(Fraction(n) for n in range(50)) == 24.5
    with pytest.raises(EndlessLoop), limited_lines(100):
        never_ends([], [])


def test_the_first_random_call_that_fails_is_a_short_one():
    verdict = ADD.grade(lambda numbers, more: [*add(numbers, more)[:2], *more[2:]])
    assert re.search(r"^add: with numbers=\[\d, \d, \d\], more=\[\d, \d, \d\]: it gave", verdict)


def test_the_readers_own_interrupt_is_not_caught():
    def interrupted(numbers, more):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ADD.grade(interrupted)


def one_ball(rng):
    return {"balls": [1]}


def test_an_argument_that_is_changed_in_play_is_told():
    def played(attempt, balls):
        return {"the sum": answer_of(attempt, balls=balls)}

    exercise = Exercise(sum, one_ball, "Add them.", played)
    assert exercise.grade(sum) == "sum: right, in all 100 random calls."
    verdict = "sum: with balls=[1]: it changed its argument balls to []."
    assert exercise.grade(lambda balls: balls.pop()).startswith(verdict)


def test_an_exercise_that_is_played_is_told_by_what_was_seen():
    def played(attempt, balls):
        box = list(balls)
        attempt(box)
        if len(box) > 5:
            raise BrokenContract("the box holds five balls.")
        return {"the box": box, "how many": len(box)}

    def put(box):
        box.append(2)

    exercise = Exercise(put, one_ball, "Put a 2 in.", played)
    assert exercise.grade(put) == "put: right, in all 100 random calls."
    wrong = "put: with balls=[1]: the box: [1], expected [1, 2]. Put a 2 in."
    assert exercise.grade(lambda box: None) == wrong
    assert "with balls=[1]: the box holds five balls." in exercise.grade(lambda box: box.extend(range(9)))
