"""A test of streaming that hangs fails."""

import signal

import pytest
from streaming_helpers import TIMEOUT


def test_a_test_that_hangs_is_interrupted_with_an_error():
    seconds, again = signal.getitimer(signal.ITIMER_REAL)
    assert 0 < seconds <= TIMEOUT and again == TIMEOUT
    with pytest.raises(TimeoutError, match=f"the test hangs since {TIMEOUT} s"):
        signal.raise_signal(signal.SIGALRM)
