"""Lesson 05's costs: the parts of a step, what they make one expect, and what the clock says."""

import pytest
import torch
from made_records import host_time_of, host_time_record, run_of, runs_record

from labkit.ladder import LADDER
from labkit.learn.lesson_05 import cost
from labkit.results import HostTime

REPLACED, MUTABLE = LADDER["04"].options, LADDER["05"].options


def times(*sizes, fixed=10e-6, each=1e-6):
    return [
        HostTime(b, 2, (5e-6 + fixed + each * b,) * 3, (2e-6,) * 3, (fixed + each * b,) * 3) for b in sizes
    ]


def test_a_step_s_parts_add_up():
    (host,) = times(8)
    parts = cost.step_parts(host)
    assert parts == pytest.approx({"block tables": 2, "append": 18, "the rest": 3})


def test_the_append_is_a_line_in_the_batch_size():
    assert cost.append_line(times(1, 8, 64)) == pytest.approx((10, 1))


HOST_RECORD = host_time_record(
    [
        ("04", host_time_of(8, (8.0, 8.0), (2.0, 2.0), (4.0, 4.0))),
        ("05", host_time_of(8, (6.0, 6.0), (2.0, 2.0), (2.0, 2.0))),
    ]
    * 4
)


def test_the_tables_of_host_time_say_what_the_comparisons_say():
    (row,) = cost.host_table(HOST_RECORD, "04", "05", [8]).to_dict("records")
    assert row == {
        "append": "×2.00",
        "append, interval": "[2.000, 2.000]",
        "step": "×1.33",
        "step, interval": "[1.333, 1.333]",
        "verdict on the step": "faster",
    }
    (row,) = cost.amdahl_table(HOST_RECORD, "04", "05", [8]).to_dict("records")
    assert list(row.values()) == ["50%", "×2.00", "×1.33", "×1.33", "×2.00"]


def test_what_the_append_saves_is_expected_of_the_whole_step():
    runs = runs_record([("04", run_of(100.0)), ("05", run_of(80.0))] * 2, max_batch_size=8)
    row = cost.expected_end_to_end(runs, HOST_RECORD, "04", "05")
    assert list(row.values()) == [10_000, 2_000, "×1.250", "×1.250", "[1.250, 1.250]"]


def test_host_times_are_measured_in_turn():
    compared = cost.compare_host(REPLACED, MUTABLE, 2, torch.device("cpu"), rounds=1, num_steps=2)
    for comparison in compared.values():
        assert len(comparison.before_samples) == len(comparison.after_samples) == 2
    assert all(
        append < step
        for append, step in zip(
            compared["append"].before_samples, compared["step"].before_samples, strict=True
        )
    )
