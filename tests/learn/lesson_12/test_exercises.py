"""Lesson 12: the solutions of its exercises say what the package does."""

import numpy as np

from labkit.learn.lesson_12.exercises import IN_ORDER


def test_keys_are_in_the_order_of_the_numbers_without_a_gap():
    numbers = np.arange(2**16, dtype=np.uint16).view(np.float16)
    keys = np.array([IN_ORDER.solution(bits) for bits in range(2**16)])
    finite = ~np.isnan(numbers)
    order = np.argsort(numbers[finite], kind="stable")
    steps = np.diff(keys[finite][order])
    assert set(steps.tolist()) == {0, 1} and (steps == 0).sum() == 1  # the zeros
