"""What the size of a block costs."""

import pytest
from figures import shown_texts, tick_labels, titles

from labkit import show
from labkit.learn.lesson_00.waste import waste_of

SIZES = [waste_of([100, 30], 2**i, 1024) for i in range(4, 9)]  # 16 to 256


def test_both_costs_are_drawn_and_the_chosen_size_is_told():
    drawn = show.draw_block_sizes(SIZES, chosen=64)
    assert shown_texts(drawn) == ["blocks of 64:\n32 % empty", "blocks of 64:\n16 entries"]
    left, right = drawn.axes
    assert left.lines[0].get_ydata().tolist() == pytest.approx([100 * size.share for size in SIZES])
    assert right.lines[0].get_ydata().tolist() == [64, 32, 16, 8, 4]
    assert tick_labels(left.xaxis) == ["16", "32", "64", "128", "256"]
    assert titles(drawn) == ["Large blocks: slots stay empty", "Small blocks: rows get long"]
    assert left.get_ylabel() == "empty slots (% of all set aside)" and left.get_ylim() == (0, 100)


def test_a_size_that_is_not_drawn_cannot_be_chosen():
    with pytest.raises(ValueError):
        show.draw_block_sizes(SIZES, chosen=8)
