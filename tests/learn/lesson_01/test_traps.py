"""Lesson 01's traps: a list that shrinks and grows again, and a copy that comes late."""

import pytest

from labkit.learn.lesson_01.traps import cut_and_regrow, rows_arrived


def test_only_rolling_back_keeps_a_regrown_row_right():
    blocks, row = cut_and_regrow(forget_rows=False)
    assert (blocks, row) == ([0, 3, 2], [0, 1, 2])
    assert cut_and_regrow(forget_rows=True) == ([0, 3, 2], [0, 3, 2])


@pytest.mark.parametrize(("num_buffers", "arrived"), [(1, 1), (2, 2), (6, 6)])
def test_a_late_copy_brings_the_rows_of_whoever_wrote_last(num_buffers, arrived):
    assert rows_arrived(6, num_buffers) == arrived
