"""Lesson 03's cost: a saving in microseconds."""

import pytest
from figures import comparison

from labkit.learn.lesson_03.cost import saved_us


def test_a_saving_is_the_medians_difference_per_step():
    twice_as_fast = comparison(2)  # runs of 8 s become runs of 4 s
    assert saved_us(twice_as_fast) == pytest.approx(4e6, rel=0.02)
    assert saved_us(twice_as_fast, num_steps=100) == pytest.approx(4e4, rel=0.02)
