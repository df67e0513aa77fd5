"""Lesson 00: slots that stay empty, and entries of a row, by the size of a block."""

import pytest

from labkit.learn.lesson_00.waste import waste_of


@pytest.mark.parametrize(
    ("lengths", "block_size", "empty", "slots", "entries"),
    [
        ((1,), 64, 63, 64, 16),
        ((64,), 64, 0, 64, 16),
        ((65, 20), 64, 63 + 44, 192, 16),
        ((20,), 4, 0, 20, 256),
        ((3, 5, 9), 1, 0, 17, 1024),
        ((100, 200), 1024, 924 + 824, 2048, 1),  # as a contiguous cache
        ((7, 8), 3, 2 + 1, 18, 342),  # a size that is no power of 2
    ],
)
def test_waste(lengths, block_size, empty, slots, entries):
    waste = waste_of(lengths, block_size, max_length=1024)
    assert (waste.empty_slots, waste.slots, waste.row_entries) == (empty, slots, entries)
    assert waste.share == empty / slots and waste.block_size == block_size


def test_a_text_wastes_less_than_a_block():
    for block_size in (1, 2, 3, 16, 64):
        for length in range(1, 200):
            assert 0 <= waste_of([length], block_size, 1024).empty_slots < block_size
