"""Lesson 10: two workers on one clock, and a GPU that the clock simulates."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import LADDER
from labkit.bench import host_engine
from labkit.learn.lesson_10.clock import StepWork, simulate, step_time, time_simulated_steps

times = st.floats(1, 1000)
works = st.builds(StepWork, times, times, times)


@given(work=works, ahead=st.integers(0, 1))
def test_the_schedule_runs_evenly_at_the_time_of_a_step(work, ahead):
    *_, last_but_one, last = (busy.end for busy in simulate(work, 6, ahead)[:-2] if busy.work == "accept")
    assert last - last_but_one == pytest.approx(step_time(work, ahead))


@given(work=works, ahead=st.integers(0, 3))
def test_a_worker_does_one_thing_at_a_time_and_reads_what_is_there(work, ahead):
    schedule = simulate(work, 6, ahead)
    for lane in ("host", "GPU"):
        boxes = sorted(busy for busy in schedule if busy.lane == lane)
        in_time = sorted(boxes, key=lambda busy: busy.start)
        assert all(one.end <= other.start + 1e-6 for one, other in pairwise(in_time))
    of = {(busy.work, int(busy.whose)): busy for busy in schedule}
    assert len(of) == len(schedule) == 18
    for step in range(1, 7):
        assert of["launch", step].end <= of["gpu", step].start
        assert of["gpu", step].end <= of["accept", step].start


AT_ONCE, ONE_BEHIND = LADDER["09"], LADDER["10"]
LONG_US = 20_000  # far longer than the host's part of a step


@pytest.mark.slow
@pytest.mark.parametrize("rung", [AT_ONCE, ONE_BEHIND], ids=["at once", "one behind"])
def test_no_step_is_shorter_than_the_gpu_s_part(rung):
    """Of 5 steps, one behind, one ran before the first that is timed began to be waited for."""
    seconds = time_simulated_steps(host_engine(rung.options, 2, "cpu"), LONG_US, num_steps=5)
    assert seconds >= 0.8e-6 * LONG_US
