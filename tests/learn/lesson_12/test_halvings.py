"""The guesses of a search, counted."""

import pytest

from labkit.learn.lesson_12.halvings import FLOAT16, FLOAT32, Guess, digits, guesses, passes, rounds


def test_guesses_halve_what_is_left_and_end_at_the_cut():
    tried = guesses([3, 9, 1, 14], limit=2)  # the second largest, 9
    assert tried == [Guess(7, 2), Guess(10, 3), Guess(8, 2), Guess(9, 3)]
    assert guesses([5, 5, 5], limit=0) == []  # one number is left at once
    keys = [17, 42, 5, 29, 51, 12]
    for limit in range(len(keys)):
        cut = sorted(keys)[limit]
        under = [guess for guess in guesses(keys, limit) if guess.num_up_to <= limit]
        assert all(guess.key < cut for guess in under)


@pytest.mark.parametrize(
    ("width", "each", "expected"),
    [
        (1, 1, 0),
        (2, 1, 1),
        (3, 1, 2),
        (1000, 1, 10),
        (2**32, 1, 32),
        (2**16, 16, 4),
        (2**32, 16, 8),
        (17, 16, 1),
    ],
)
def test_rounds_until_one_number_is_left(width, each, expected):
    assert rounds(width, each) == expected


def test_passes_of_the_kernel_and_digits_of_a_number():
    assert [passes(FLOAT16, *cuts) for cuts in ((False, False), (True, False), (True, True))] == [1, 9, 18]
    assert passes(FLOAT32, False, True) == 18
    assert digits(FLOAT16) == 2 and digits(FLOAT32) == 4
