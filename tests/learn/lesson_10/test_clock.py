"""Two workers on one clock, and recorded steps as their work."""

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from made_records import host_time_of, host_time_record, record_of, traced

from labkit.learn.lesson_10.clock import (
    StepWork,
    handed_out,
    hidden_table,
    recorded_work,
    simulate,
    step_time,
)

times = st.floats(1, 1000)
works = st.builds(StepWork, times, times, times)


@given(work=works)
def test_read_at_once_takes_the_sum_and_one_behind_the_larger(work):
    assert step_time(work) == pytest.approx(work.host + work.gpu)
    assert step_time(work, ahead=1) == pytest.approx(max(work.host, work.gpu))


@pytest.mark.slow
@given(work=works)
def test_further_behind_gains_nothing_more(work):
    assume(abs(work.host - work.gpu) > 0.05 * work.launch)
    assert step_time(work, ahead=2) == pytest.approx(max(work.host, work.gpu))


@given(work=works, ahead=st.integers(0, 3))
def test_a_worker_does_one_thing_at_a_time_and_reads_what_is_there(work, ahead):
    schedule = simulate(work, 6, ahead)
    for lane in ("host", "GPU"):
        boxes = sorted(busy for busy in schedule if busy.lane == lane)
        in_time = sorted(boxes, key=lambda busy: busy.start)
        assert all(one.end <= other.start + 1e-6 for one, other in pairwise(in_time))
    of = {(busy.work, busy.step): busy for busy in schedule}
    assert len(of) == len(schedule) == 18
    for step in range(6):
        assert of["launch", step].end <= of["gpu", step].start
        assert of["gpu", step].end <= of["accept", step].start


def test_tokens_are_handed_out_when_they_were_accepted():
    assert handed_out(StepWork(2, 10, 3), 3) == [15, 30, 45]
    assert handed_out(StepWork(2, 10, 3), 3, ahead=1) == [15, 25, 35]


def test_half_of_the_host_is_before_the_gpu():
    work = StepWork.of(host=145, gpu=592)
    assert work == (72.5, 592, 72.5) and work.host == 145


TRACED = record_of(
    "decode_kernels",
    [traced("09", 64, 801, 500), traced("10", 64, 510.0, 500.0), traced("10", 1, 200.0, 100.0)],
)
HOST = host_time_record(
    [("09", host_time_of(64, [145e-6] * 3))]
    + [("10", host_time_of(size, [seconds] * 3)) for size, seconds in ((64, 250e-6), (128, 600e-6))]
)


def test_a_recorded_step_has_the_host_s_part_by_the_clock_and_the_gpu_s_from_the_trace():
    work = recorded_work(HOST, TRACED, "09", 64)
    assert work.host == pytest.approx(145) and work.gpu == 500


def test_the_host_stands_beside_the_gpu_where_both_are_recorded():
    (row,) = hidden_table(HOST, TRACED, "10").to_dict("records")
    assert list(row.values()) == [250, 500, 50, 10.0, 2.0]
