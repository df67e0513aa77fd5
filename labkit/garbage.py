"""When Python's garbage collector may not run."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_collector = threading.RLock()


@contextmanager
def uncollected() -> Iterator[None]:
    """A context without garbage collection. One thread at a time is inside."""
    with _collector:  # it is the whole process's: who leaves first would switch it on for the other one
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()
