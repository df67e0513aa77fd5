"""One layer's attention by itself, as recorded."""

import json

import pytest
from made_records import record_of

from labkit.results import AttentionTime

TIME = AttentionTime("split", 8, 900, 11, (2e-6, 4e-6, 3e-6), 3000)


def test_attention_is_timed_by_its_median():
    assert (TIME.us, TIME.rate) == pytest.approx((3, 1e9))


def test_attention_s_time_survives_its_record():
    assert AttentionTime.from_dict(json.loads(json.dumps(TIME.to_dict()))) == TIME


def test_each_sample_says_the_copy_bandwidth():
    (sample,) = record_of("attention", [TIME], bandwidth=3e12).to_dict()["samples"]
    assert sample["copy_bytes_per_second"] == 3e12 and sample["us"] == pytest.approx(3)
