"""Predictions are scored, and exercises say what is wrong."""

import pytest

from labkit.learn import Prediction, not_attempted
from labkit.learn.lesson_00 import BLOCKS_TAKEN, LOCATE


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


def test_prediction_refuses_what_has_no_ratio():
    with pytest.raises(ValueError, match="must be positive"):
        Prediction("Calls", "calls", -1).score(48)


@pytest.mark.parametrize("exercise", [LOCATE, BLOCKS_TAKEN], ids=lambda e: e.name)
def test_the_solution_is_right_and_the_empty_cell_is_not_attempted(exercise):
    assert exercise.grade(exercise.solution) == f"{exercise.name}: right, all {len(exercise.cases)} cases."
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."


def forgets_the_table(position, block_table, block_size):
    return position // block_size, position % block_size


def stays_in_the_first_block(position, block_table, block_size):
    return block_table[0], position


def assumes_blocks_of_four(position, block_table, block_size):
    return block_table[position // 4 % len(block_table)], position % 4


def rounds_up(position, block_table, block_size):
    return block_table[-(-position // block_size)], position % block_size


def always_takes_one(num_tokens, last_is_shared, block_size):
    return 1


def forgets_the_empty_sequence(num_tokens, last_is_shared, block_size):
    return int(num_tokens > 0 and num_tokens % block_size == 0)


def forgets_copy_on_write(num_tokens, last_is_shared, block_size):
    return int(num_tokens % block_size == 0)


def copies_full_blocks_too(num_tokens, last_is_shared, block_size):
    return int(num_tokens % block_size == 0) + last_is_shared


@pytest.mark.parametrize(
    ("exercise", "attempt", "hint"),
    [
        (LOCATE, forgets_the_table, "slot 0 of the first block"),
        (LOCATE, stays_in_the_first_block, "second logical block"),
        (LOCATE, assumes_blocks_of_four, "not always 4"),
        (LOCATE, rounds_up, "slot 3"),
        (BLOCKS_TAKEN, always_takes_one, "in place"),
        (BLOCKS_TAKEN, forgets_the_empty_sequence, "no block to write to"),
        (BLOCKS_TAKEN, forgets_copy_on_write, "copy of your own"),
        (BLOCKS_TAKEN, copies_full_blocks_too, "costs nothing"),
    ],
)
def test_plausible_wrong_answers_get_their_own_hint(exercise, attempt, hint):
    verdict = exercise.grade(attempt)
    assert hint in verdict and "expected" in verdict


def test_a_crash_in_an_attempt_is_told():
    verdict = LOCATE.grade(lambda position, block_table, block_size: block_table[99])
    assert "raised IndexError" in verdict


def test_an_attempt_that_changes_its_arguments_spoils_no_case():
    def eats_the_table(position, block_table, block_size):
        block_table.clear()
        return None

    assert "expected (7, 0)" in LOCATE.grade(eats_the_table)
    assert LOCATE.grade(LOCATE.solution).endswith("right, all 5 cases.")
