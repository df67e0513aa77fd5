"""Lesson 07: models whose layers hold different tokens."""

import pytest

from labkit.learn.lesson_07.windows import blocks_by_window


@pytest.mark.parametrize(
    ("windows", "expected"),
    [([None] * 3, (12, 12)), ([None, 4], (5, 8)), ([None, 5], (6, 8)), ([None, 0], (4, 8)), ([4, 4], (2, 2))],
)
def test_blocks_of_layers_that_look_back_only_so_far(windows, expected):
    assert blocks_by_window(windows, num_tokens=16, block_size=4) == expected
