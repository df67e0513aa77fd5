"""The Python functions that are called, as the interpreter reports them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def profiled_by(on_event: Callable[[FrameType, str, object], None]) -> Iterator[None]:
    """Inside the block, `on_event` is called at every Python call and return, as by `sys.setprofile`."""
    previous = sys.getprofile()
    sys.setprofile(on_event)
    try:
        yield
    finally:
        sys.setprofile(previous)
