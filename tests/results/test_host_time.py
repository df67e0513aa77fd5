"""Host times: their medians, and what a record says of its rungs and batch sizes."""

import json

import pytest
from made_records import host_time_of, host_time_record

from labkit.results import HostTime


def test_medians_are_in_microseconds():
    time = HostTime(4, 2, (1e-3, 3e-3, 2e-3), (1e-4,) * 3, (3e-4,) * 3)
    assert time.step_us == pytest.approx(2000)
    assert time.layer_us == pytest.approx(200)
    assert (time.tables_us, time.append_us, time.rest_us) == pytest.approx((100, 300, 1600))
    assert HostTime.from_dict(json.loads(json.dumps(time.to_dict()))) == time


def test_recorded_host_times_of_a_batch_size_are_pooled():
    first, second = (
        host_time_of(2, (1.0, 2.0), append=(0.1, 0.1)),
        host_time_of(2, (3.0, 4.0), append=(0.1, 0.1)),
    )
    record = host_time_record([("00", first), ("00", host_time_of(4)), ("00", second)])
    assert list(record.times) == ["00"] and [t.batch_size for t in record.times["00"]] == [2, 4]
    assert record.times["00"][0].step_seconds == (1.0, 2.0, 3.0, 4.0)
    assert record.time("00", 2) == record.times["00"][0]
    assert len(record.time("00", 2).append_seconds) == 4
    assert record.runs_of("00", 2) == [first, second]


def test_two_rungs_host_times_are_compared_by_their_median_steps():
    runs = [
        ("00", (4.0, 5.0, 9.0)),
        ("01", (1.0, 2.0, 9.0)),
        ("01", (2.0, 2.0, 2.0)),
        ("00", (6.0, 6.0, 6.0)),
    ]
    record = host_time_record([(rung, host_time_of(b, steps)) for rung, steps in runs for b in (8, 64)])
    made = record.comparison("00", "01", 64)
    assert (made.before_samples, made.after_samples) == ((5.0, 6.0), (2.0, 2.0))


def test_the_append_alone_is_compared_by_the_medians_of_runs():
    runs = [
        ("04", 8, (2.0, 8.0, 2.0)),
        ("05", 8, (1.0,)),
        ("05", 8, (1.0,)),
        ("04", 8, (2.0,)),
        ("04", 64, (7.0,)),
    ]
    record = host_time_record([(rung, host_time_of(b, (9.0,), (9.0,), append)) for rung, b, append in runs])
    compared = record.append_comparison("04", "05", 8)
    assert compared.before_samples == (2, 2) and compared.after_samples == (1, 1)
    assert compared.speedup == pytest.approx(2)


def test_host_times_by_rung_and_batch_size():
    record = host_time_record([("00", host_time_of(b, (b * 1e-6,) * 3)) for b in (1, 8, 64)])
    assert record.table((8, 64)).to_dict("index") == {"00": {"B = 8": 8, "B = 64": 64}}
