"""Lesson 08: what records say of launches, and the bounds drawn from them."""

import pytest
from made_records import record_of, run_of, runs_record, traced

from labkit.bench.profile import Span
from labkit.learn.lesson_08.cost import (
    LaunchBound,
    forward_us,
    gain_by_context,
    launch_model,
    share_replaced,
)
from labkit.results import StepProfile, amdahl


def profile_of(batch_size, forward, kernels):
    return StepProfile(
        batch_size,
        duration=1000.0,
        ranges=(Span("labkit.kv.append_token", 0, 100), Span("labkit.model.forward", 100, forward)),
        operators=(),
        kernels=(Span("append", 50, 7), *(Span("k", 100 + i, us) for i, us in enumerate(kernels))),
    )


def test_the_forward_s_launches_and_its_kernels():
    assert forward_us(profile_of(1, 600.0, (10.0, 30.0))) == (600, 40, 2)
    assert forward_us(profile_of(8, 620.0, (40.0, 60.0))) == (620, 100, 2)


def test_amdahl_s_law():
    assert amdahl(0.5, float("inf")) == 2
    assert amdahl(0.5, 1) == 1
    assert amdahl(1, 3) == pytest.approx(3)
    assert share_replaced(2) == 0.5
    assert amdahl(share_replaced(1.1), float("inf")) == pytest.approx(1.1)


def test_the_slower_worker_is_the_step():
    assert LaunchBound(300, 100).eager_us == 300 and LaunchBound(300, 100).gain == 3
    assert LaunchBound(100, 300).eager_us == 300 and LaunchBound(100, 300).gain == 1


def ladder(**step_us):
    """A record whose steps take so many microseconds, by rung."""
    runs = {rung[1:]: run_of(10e-6 * us, decode_steps=10) for rung, us in step_us.items()}
    return runs_record([*runs.items()] * 4)


def test_launches_times_microseconds_against_the_record():
    records = {64: ladder(r07=2200.0, r08=1000.0), 1: ladder(r07=1000.0, r08=500.0)}
    table = launch_model(records, {1: 100, 64: 200})
    assert table["B = 1"].tolist() == [100, 1000, 1000, "100%"]
    assert table["B = 64"].tolist() == [200, 2000, 2200, "91%"]


def test_the_gain_is_gone_where_the_gpu_takes_longer_than_the_launches():
    samples = [
        traced(rung, b, 1000.0, 100.0 + us * b, context_len=10)
        for b in (1, 2, 4)
        for rung, us in (("07", 99), ("08", 50))
    ]
    record = record_of("decode_kernels", samples, bandwidth=1e9)  # a token of 1000 bytes takes 1 us
    table = gain_by_context(record, 600.0, 1000, (2, 4, 20), (10, 110))
    assert table.loc[10].tolist() == ["×3.00", "×2.00", "×1.00"]
    assert table.loc[110].tolist() == ["×1.50", "×1.00", "×1.00"]
