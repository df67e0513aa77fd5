"""The measured variants: tables by the file, each time beside rung 10 of the same load."""

import pytest

from labkit.learn.lesson_11 import variants


def test_every_sample_has_rung_10_of_its_load_or_run_beside_it():
    us, layers = variants.step_us(), variants.measured().layers.samples
    assert len(us) == len(variants.measured().steps.samples)  # no load and variant twice
    assert {key[:2] for key in us} == {key[:2] for key in us if key[2] == variants.RUNG_10}
    runs = {(s.run, s.rows) for s in layers}
    assert runs == {(s.run, s.rows) for s in layers if s.variant == variants.RUNG_10}


def test_a_median_lies_between_least_and_most():
    for sample in variants.measured().steps.samples:
        assert 0 < sample.least_us <= sample.us <= sample.most_us
    assert all(0 < s.least_us <= s.us for s in variants.measured().layers.samples)


def test_a_change_is_a_time_and_its_percent():
    assert variants.change(586.3, 639.0) == "586 (-8.2 %)"
    assert variants.change(10.0, 10.0) == "10 (+0.0 %)"


def test_lanes_are_told_load_by_load():
    lines = variants.lanes_lines()
    assert lines[0] == " 16 requests of        512 tokens: 372 -> 404 (+8.9 %)"
    assert lines[3] == " 64 requests of 256 to 512 tokens: 639 -> 586 (-8.2 %)" and len(lines) == 7


def test_asking_early_is_told_for_each_load_that_has_it():
    table = variants.early_table()
    assert list(table.index)[:2] == ["1 x 512", "8 x 512"]
    assert list(table.loc["1 x 512"]) == ["278", "267 (-3.9 %)", "266 (-4.2 %)"]
    assert table.loc["128 x 128", "keys and values, too"] == ""


def test_orders_are_those_of_the_lanes_beside_rung_10():
    (column,) = variants.orders_table().columns
    told = variants.orders_table()[column]
    assert len(told) == len(variants.ORDERS) and told["rung 10"] == "639 (+0.0 %)"
    assert told["side stream of high priority"] == "825 (+29.1 %)"


def test_the_kernel_of_all_layers_is_told_without_rung_10s_own_rows():
    table = variants.layers_table()
    assert list(table.index) == [1, 1, 1, 1, 1, 2, 4, 8]
    assert list(table["ratio"])[:3] == ["×1.05", "×1.19", "×1.21"]
    assert variants.barriers() == "61 grid barriers alone: 55 us"


@pytest.mark.parametrize("what", ["steps", "layers"])
def test_the_source_names_the_device_and_fits_the_page(what):
    assert variants.source(what).startswith("NVIDIA H200, 2026-")
    assert max(map(len, variants.source(what).splitlines())) <= 100
