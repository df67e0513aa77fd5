"""A GPU that a clock plays."""

import time

import pytest

from labkit import LADDER
from labkit.bench import host_engine
from labkit.learn.lesson_10.played_gpu import measure_played, time_played_steps, wait_until
from labkit.learn.measured import BELOW, PACKAGE, YOURS

pytestmark = pytest.mark.slow
AT_ONCE, ONE_BEHIND = LADDER["09"], LADDER["10"]
LONG_US = 20_000  # far longer than the host's part of a step


def test_it_is_waited_for_until_the_moment():
    moment = time.perf_counter() + 0.002
    wait_until(moment)
    assert time.perf_counter() >= moment
    wait_until(moment - 1)


@pytest.mark.parametrize("rung", [AT_ONCE, ONE_BEHIND], ids=["at once", "one behind"])
def test_no_step_is_shorter_than_the_gpu_s_part(rung):
    """Of 5 steps, one behind, one ran before the first that is timed began to be waited for."""
    seconds = time_played_steps(host_engine(rung.options, 2, "cpu"), LONG_US, num_steps=5)
    assert seconds >= 0.8e-6 * LONG_US


def test_a_clock_that_waits_for_the_gpu_waits_for_the_step_ahead():
    engine = host_engine(ONE_BEHIND.options, 2, "cpu")
    seconds = time_played_steps(engine, LONG_US, num_steps=5, synchronize=True)
    assert seconds >= 0.8e-6 * LONG_US


def test_three_engines_run_in_turn():
    measured = measure_played(AT_ONCE, ONE_BEHIND, {}, 100, "cpu", batch_size=2, rounds=1)
    assert list(measured.seconds) == [BELOW, YOURS, PACKAGE] and measured.batch_size == 2
    assert all(len(runs) == 2 and min(runs) > 100e-6 * 0.9 for runs in measured.seconds.values())
