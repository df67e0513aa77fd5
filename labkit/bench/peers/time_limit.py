"""A limit on the time that a block of code takes."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TookTooLongError(BaseException):
    """The time of a `time_limit` is over. No `Exception`, which code on the way up might take for its own."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Inside the block, TookTooLongError is raised after so many seconds of wall clock.

    There is no limit where the system has no alarm (Windows) or outside of the main thread. Code that is not
    Python's is interrupted when it returns.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(*_: object) -> None:
        raise TookTooLongError(f"it took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
