"""One layer's K/V write by itself, as recorded."""

import json

import pytest

from labkit.results import AppendTime

TIME = AppendTime("generic", 8, (2e-6, 4e-6, 3e-6), (9e-6, 7e-6, 8e-6), 3000)


def test_a_write_is_timed_by_its_median():
    assert (TIME.device_us, TIME.host_us, TIME.rate) == pytest.approx((3, 8, 1e9))


def test_a_write_s_time_survives_its_record():
    assert AppendTime.from_dict(json.loads(json.dumps(TIME.to_dict()))) == TIME
