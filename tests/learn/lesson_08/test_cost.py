"""Lesson 08: what is said of a reader's buckets."""

from labkit.engine.step.graphed import batch_buckets
from labkit.learn.lesson_08.cost import padding_of, spaced_sizes


def test_a_reader_s_buckets_are_told_in_a_line():
    told = padding_of(lambda largest: [largest, 2, 1], max_batch_size=4)
    assert told == (
        "graphs: right. 6 for up to 4 requests; padding: 6.2 % of rows on average, 25.0 % at worst"
    )
    assert padding_of(batch_buckets).startswith("graphs: right. 22 for up to 128 requests; ")
    every_size = padding_of(lambda largest: range(1, largest + 1))
    assert every_size.startswith("graphs: too many. 256 for up to 128 requests; ")
    doubling = padding_of(lambda largest: spaced_sizes(largest, 1))
    assert doubling.startswith("graphs: too much padding. 16 ") and doubling.endswith(", 49.2 % at worst")
    too_small = padding_of(lambda largest: [1, 2])
    assert too_small == "graphs: not counted, because no size fits a batch of 128"
    broken = padding_of(lambda largest: largest / 0)
    assert broken.startswith(
        "graphs: not counted, because sizes_for raised ZeroDivisionError: division by zero"
    )
