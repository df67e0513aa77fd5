"""Lesson 08: choices of buckets, their padding, and what is said of a reader's own."""

import pytest

from labkit.engine.step.graphed import batch_buckets
from labkit.learn.lesson_08.padding import bucket_of, padding_of, padding_table, spaced_sizes


def test_the_padding_of_choices_of_buckets():
    table = padding_table({"two": [2, 4], "every": [1, 2, 3, 4]}, 4)
    assert table.loc["two"].tolist() == [2, 4, pytest.approx(100 * (0.5 + 0 + 0.25 + 0) / 4, abs=0.1), 50, 1]
    assert table.loc["every"].tolist() == [4, 8, 0, 0, 1]


def test_sizes_are_spaced_by_a_factor_up_to_the_largest_batch():
    assert spaced_sizes(128, 1) == [1, 2, 4, 8, 16, 32, 64, 128]
    assert spaced_sizes(100, 1) == [1, 2, 4, 8, 16, 32, 64, 100]
    assert spaced_sizes(1, 1) == spaced_sizes(1, 4) == [1]
    assert spaced_sizes(20, 2) == [1, 2, 3, 4, 6, 8, 12, 16, 20]


def test_the_buckets_of_the_lesson_are_those_of_the_package():
    lesson = [bucket_of(size, batch_buckets(128)) for size in range(1, 129)]
    assert lesson == [min(b for b in batch_buckets(128) if b >= size) for size in range(1, 129)]


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
