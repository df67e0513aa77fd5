"""What happens at a chosen line of the code under test, and interrupts that raise."""

import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from labkit import InferenceEngine


@contextmanager
def at_lines(
    numbers: Collection[int], act: Callable[[], object] | None, within: str = "labkit"
) -> Iterator[SimpleNamespace]:
    """Act at these lines of files whose path has `within`, as they run inside; the value has the `count`.

    The return of a step's outputs is no such line: there no signal is handled.
    """
    lines = SimpleNamespace(count=0)

    def trace(frame: FrameType, event: str, argument: Any) -> Callable | None:
        if within not in frame.f_code.co_filename:
            return None
        is_return = frame.f_code is InferenceEngine.step.__code__ and "outputs" in frame.f_locals
        if event == "line" and not is_return:
            lines.count += 1
            if lines.count in numbers:
                act()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)


@pytest.fixture(autouse=True)
def interrupts_raise():
    """As in a terminal: a job in the background begins with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
