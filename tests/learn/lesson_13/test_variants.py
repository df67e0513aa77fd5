"""What was measured of shares: the file's numbers, and the form that the package has."""

import pytest

from labkit.learn.lesson_13 import variants


def test_one_long_row_costs_a_third_and_equal_rows_gain_nothing():
    ragged = variants.sample(64, "63 of 100, one of 900")
    assert ragged.split_us / variants.shares_us(ragged) == pytest.approx(35.33 / 10.53)
    equal = variants.sample(64, "512")
    assert equal.split_us < variants.shares_us(equal) == equal.pieces_of_16_us


def test_few_rows_have_large_pieces():
    few = variants.sample(8, "512")
    assert variants.shares_us(few) == few.pieces_of_32_us == 7.26


def test_the_table_has_the_ragged_batches_first():
    table = variants.table()
    assert table.index[0] == "8 x lognormal" and table.index[-1] == "128 x 512"
    assert table.loc["64 x lognormal", "rung 13 over rung 12"] == "×2.85"
    assert "NVIDIA H200" in variants.source("attention") and len(variants.plan_lines()) == 6
