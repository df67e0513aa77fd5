"""One layer's write and attention by themselves, as recorded."""

import json

import pytest
from made_records import record_of

from labkit.results import AppendTime, AttentionTime

APPEND = AppendTime("generic", 8, (2e-6, 4e-6, 3e-6), (9e-6, 7e-6, 8e-6), 3000)
ATTENTION = AttentionTime("split", 8, 900, 11, (2e-6, 4e-6, 3e-6), 3000)


def test_an_append_is_timed_by_its_median():
    assert (APPEND.device_us, APPEND.host_us, APPEND.rate) == pytest.approx((3, 8, 1e9))
    assert AppendTime.from_dict(json.loads(json.dumps(APPEND.to_dict()))) == APPEND


def test_attention_is_timed_by_its_median():
    assert (ATTENTION.us, ATTENTION.rate) == pytest.approx((3, 1e9))
    assert AttentionTime.from_dict(json.loads(json.dumps(ATTENTION.to_dict()))) == ATTENTION


def test_each_sample_of_attention_says_the_copy_bandwidth():
    (sample,) = record_of("attention", [ATTENTION], bandwidth=3e12).to_dict()["samples"]
    assert sample["copy_bytes_per_second"] == 3e12 and sample["us"] == pytest.approx(3)
