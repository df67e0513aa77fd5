"""Host times: their medians, and what a record says of its rungs and batch sizes."""

import pytest
from made_records import host_time_of, host_time_record

from labkit.results import HostTime, slope_us


def test_medians_are_in_microseconds_and_the_rest_is_that_of_each_step():
    time = HostTime(4, 2, (1e-3, 5e-3, 3e-3), (1e-4, 4e-3, 1e-4), (2e-4, 2e-4, 2e-3))
    assert (time.step_us, time.tables_us, time.append_us) == pytest.approx((3000, 100, 200))
    assert time.rest_us == pytest.approx(800)  # of 700, 800 and 900; the medians' difference is 2700
    assert time.layer_us == pytest.approx(1050)


def test_host_times_of_a_batch_size_are_pooled():
    first, second = host_time_of(2, (1.0,), (0.1,), (0.2,)), host_time_of(2, (3.0,), (0.1,), (0.4,))
    record = host_time_record([("00", first), ("00", host_time_of(4)), ("00", second)])
    assert [t.batch_size for t in record.times["00"]] == [2, 4]
    assert record.time("00", 2) == record.times["00"][0]
    assert record.time("00", 2) == host_time_of(2, (1.0, 3.0), (0.1, 0.1), (0.2, 0.4))


def test_rungs_are_compared_by_the_medians_of_their_runs():
    runs = [("00", (4.0, 5.0, 9.0)), ("01", (1.0, 2.0, 9.0)), ("01", (2.0,) * 3), ("00", (6.0,) * 3)]
    record = host_time_record(
        [
            (rung, host_time_of(b, steps, append=[s / b for s in steps]))
            for rung, steps in runs
            for b in (8, 64)
        ]
    )
    made = record.comparison("00", "01", 64)
    assert (made.before_samples, made.after_samples) == ((5.0, 6.0), (2.0, 2.0))
    made = record.append_comparison("00", "01", 8)
    assert made.before_samples == (5 / 8, 6 / 8)
    assert record.table((64,)).to_dict("index") == {"00": {"B = 64": 6_000_000}, "01": {"B = 64": 2_000_000}}


def test_the_slope_is_of_the_larger_half():
    times = [
        host_time_of(b, (1e-6 * us,)) for b, us in ((1, 500), (8, 500), (32, 600), (64, 700), (128, 900))
    ]
    assert slope_us(times) == pytest.approx(3.1, abs=0.1)
    assert slope_us(times[:1]) is None
