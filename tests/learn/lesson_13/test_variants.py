"""What was measured of shares: the file's numbers, and the form that the package has."""

from statistics import median

import pytest

from labkit.engine.step.fused_chunk import MOST_ROWS
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


def test_up_to_256_rows_the_decode_steps_kernels_are_faster_and_not_beyond():
    table = variants.chunks_table()
    is_faster = [float(ratio.removeprefix("×")) > 1 for ratio in table["faster by"]]
    assert is_faster == [rows <= MOST_ROWS for rows in table.index]
    assert table.loc[16].tolist() == ["580", "329", "×1.76"]


def test_which_way_to_launch_chunks_is_fastest_cannot_be_told():
    """Each one's median lies within the range of each other one."""
    for column in ("ragged_tokens_per_second", "itl_ms"):
        runs = [sorted(map(p99, getattr(form, column))) for form in variants.measured().launches.samples]
        for one in runs:
            assert all(other[0] < median(one) < other[-1] for other in runs)
    assert variants.launches_table().loc["in line", "ITL p99 (ms)"] == "1.47 (1.13 to 1.66)"


def p99(run):
    return getattr(run, "p99", run)


def test_rung_13_is_four_times_its_median_where_rung_10_is_forty():
    table = variants.arrivals_table()
    assert table["p99 over p50"].tolist() == [
        "47.9 (38.3 to 53.2)",
        "36.5 (27.6 to 47.3)",
        "4.0 (3.9 to 4.1)",
        "3.2 (3.0 to 4.1)",
    ]
    assert table.index[-1] == "rung 13, as its clients have them"


def test_a_number_without_a_range_is_written_alone():
    assert variants.in_words([1.61, 1.62, 1.58], 1) == "1.6"
    assert variants.in_words([1.0, 3.0, 2.0], 1) == "2.0 (1.0 to 3.0)"
