"""Profiled steps, as recorded."""

import json

import pytest
from made_records import record_of

from labkit.results import ProfiledStep, StepProfile
from labkit.results.profiles import Span

SPANS = (Span("labkit.model.forward", 1.0, 2.0), Span("labkit.kv.append_token", 4.0, 1.0))
PROFILE = StepProfile(
    3, 8.0, (*SPANS, Span("labkit.model.forward", 6.0, 2.0)), SPANS, (Span("kernel", 1.5, 0.8),)
)


def test_profile_survives_its_record():
    assert StepProfile.from_dict(json.loads(json.dumps(PROFILE.to_dict()))) == PROFILE
    assert PROFILE.gpu_busy == pytest.approx(0.1)


def test_a_range_that_is_entered_twice_is_added_up():
    assert PROFILE.range_shares() == {"labkit.model.forward": 0.5, "labkit.kv.append_token": 0.125}


def test_the_largest_batch_of_a_record():
    steps = [ProfiledStep("00", b, (0.2, 0.1, 0.4), {"in_place": b}, 0.01, PROFILE) for b in (1, 64, 8)]
    record = record_of("profile", steps)
    assert record.largest is steps[1] and record.largest.median_seconds == 0.2
    assert ProfiledStep.from_dict(json.loads(json.dumps(steps[0].to_dict()))) == steps[0]
