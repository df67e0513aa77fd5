"""Small sums over samples: writes, attention, traced and profiled steps, tiles."""

import pytest
from made_records import record_of, traced

from labkit.errors import RecordError
from labkit.results import AppendTime, AttentionTime, ProfiledStep, StepProfile
from labkit.results.kernel_times import TunedTile
from labkit.results.profiles import KernelTime, Span


def test_kernels_are_timed_by_their_medians():
    append = AppendTime("generic", 8, (2e-6, 9e-6, 3e-6), (9e-6, 1e-6, 8e-6), 3000)
    assert (append.device_us, append.host_us, append.rate) == pytest.approx((3, 8, 1e9))
    attention = AttentionTime("split", 8, 900, 11, (2e-6, 9e-6, 3e-6), 3000)
    assert (attention.us, attention.rate) == pytest.approx((3, 1e9))
    tile = TunedTile("MLP up", 1, 1, 64, (64,) * 6, (6e-6, 9e-6, 7e-6), (32,) * 6, (4e-6,), 50)
    assert tile.gain == pytest.approx(1.75)


def test_a_step_is_busy_or_idle_and_has_the_medians_of_its_traces():
    kernels = (KernelTime("product", 36, 60.0), KernelTime("Memcpy DtoH (Device -> Pinned)", 1, 3.0))
    step = traced("10", 64, 200.0, 150.0, kernels)
    assert (step.idle_us, step.idle_share, step.num_kernels) == (50, 0.25, 36)  # a copy is no kernel
    record = record_of("decode_kernels", [step, traced("10", 64, 202.0, 160.0), traced("09", 8, 9.0, 8.0)])
    assert record.step("10", 64) == traced("10", 64, 201.0, 155.0, kernels)
    assert record.gpu_busy_us("10") == {64: 155}
    for ask in (lambda: record.step("10", 3), lambda: record.gpu_busy_us("06")):
        with pytest.raises(RecordError, match="the record has no"):
            ask()


def test_ranges_of_a_profile_are_added_up_and_operators_counted():
    ranges = (Span("forward", 1.0, 2.0), Span("append", 4.0, 1.0), Span("forward", 6.0, 2.0))
    profile = StepProfile(
        3, 8.0, ranges, (Span("add", 1.5, 0.1), Span("add", 5.5, 0.1)), (Span("k", 1.5, 0.8),)
    )
    assert profile.gpu_busy == pytest.approx(0.1)
    assert profile.range_shares() == {"forward": 0.5, "append": 0.125}
    assert profile.table()["operators"].to_dict() == {"forward": 1, "append": 0, "(rest of the step)": 1}
    steps = [ProfiledStep("00", b, (0.2, 0.1, 0.4), {}, 0.01, profile) for b in (1, 64, 8)]
    assert record_of("profile", steps).largest is steps[1] and steps[1].median_seconds == 0.2
