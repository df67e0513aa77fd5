"""A GPU that a clock plays."""

import pytest

from labkit import LADDER
from labkit.bench import host_engine
from labkit.learn.lesson_10.clock import time_played_steps

pytestmark = pytest.mark.slow
AT_ONCE, ONE_BEHIND = LADDER["09"], LADDER["10"]
LONG_US = 20_000  # far longer than the host's part of a step


@pytest.mark.parametrize("rung", [AT_ONCE, ONE_BEHIND], ids=["at once", "one behind"])
def test_no_step_is_shorter_than_the_gpu_s_part(rung):
    """Of 5 steps, one behind, one ran before the first that is timed began to be waited for."""
    seconds = time_played_steps(host_engine(rung.options, 2, "cpu"), LONG_US, num_steps=5)
    assert seconds >= 0.8e-6 * LONG_US


def test_a_clock_that_waits_for_the_gpu_waits_for_the_step_ahead():
    engine = host_engine(ONE_BEHIND.options, 2, "cpu")
    seconds = time_played_steps(engine, LONG_US, num_steps=5, synchronize=True)
    assert seconds >= 0.8e-6 * LONG_US
