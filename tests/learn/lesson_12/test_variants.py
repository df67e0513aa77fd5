"""The measured draws: both forms of each batch, by the file, and what one row gains and all rows lose."""

import pytest

from labkit.learn.lesson_12 import variants
from labkit.learn.lesson_12.variants import SPLIT, WHOLE


def test_every_batch_that_draws_has_both_forms_once():
    samples = [s for s in variants.measured().draws.samples if s.drawing]
    keys = [(s.rows, s.dtype, s.drawing, s.form) for s in samples]
    assert len(set(keys)) == len(keys)
    batches = {key[:3] for key in keys}
    assert {(*batch, form) for batch in batches for form in (WHOLE, SPLIT)} == set(keys)


def test_a_draw_takes_longer_than_the_greedy_kernels_alone():
    for sample in variants.measured().draws.samples:
        if sample.drawing:
            assert 0 < sample.greedy_us < sample.temperature_us < sample.top_p_us < sample.both_us
    assert all(0 < s.one_us < s.all_us for s in variants.measured().settings.samples)


def test_split_rows_gain_where_one_draws_and_lose_where_all_do():
    one = [variants.sample(64, 1, form).top_p_us for form in (WHOLE, SPLIT)]
    every = [variants.sample(64, 64, form).top_p_us for form in (WHOLE, SPLIT)]
    assert one == [79.4, 40.8] and every == [80.3, 166.0]
    assert variants.sample(64, 64, SPLIT, "float32").both_us == 684.7


def test_the_table_has_both_forms_of_one_and_of_all():
    table = variants.table()
    assert list(table.columns) == [WHOLE, SPLIT] and len(table) == 8
    assert list(table.loc["1 of 64, top-p"]) == ["79", "41"]
    assert list(table.loc["64 of 64, top-p"]) == ["80", "166"]


def test_no_setting_has_both():
    expected = "11 settings of several programs, top-p: one of 64 draws, 35 to 43 us; all draw, 148 to 274 us"
    assert variants.settings_line() == expected


@pytest.mark.parametrize("what", ["draws", "settings"])
def test_the_source_names_the_device_and_fits_the_page(what):
    assert variants.source(what).startswith("NVIDIA H200, 2026-11-22: ")
    assert max(map(len, variants.source(what).splitlines())) <= 100
