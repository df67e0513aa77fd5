"""A block that takes too long is interrupted, and nothing is left of the alarm."""

import signal
import time
from contextlib import suppress

import pytest

from labkit.bench.peers.together import TookTooLongError, time_limit

needs_alarm = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no alarm")


@needs_alarm
def test_a_block_that_takes_too_long_is_interrupted_whatever_it_catches():
    before = signal.getsignal(signal.SIGALRM)
    started = time.perf_counter()
    with pytest.raises(TookTooLongError, match=r"more than 0.05 s"), time_limit(0.05):
        while True:
            with suppress(Exception):  # as a library does that goes on after every error
                time.sleep(10)
    assert time.perf_counter() - started < 5
    assert signal.getsignal(signal.SIGALRM) is before and signal.getitimer(signal.ITIMER_REAL) == (0, 0)
