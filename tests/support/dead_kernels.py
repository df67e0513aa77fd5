"""nbval waits for the answer of a kernel that died until the cell's time is up. This notices it at once."""

import time
from collections.abc import Callable
from queue import Empty

from nbval.kernel import RunningKernel

TURN = 5  # seconds


def noticing(get_message: Callable[..., dict]) -> Callable[..., dict]:
    """`RunningKernel.get_message`, waiting in turns. Raises RuntimeError if the kernel is dead."""

    def wait(kernel: RunningKernel, stream: str, timeout: float) -> dict:
        end = time.monotonic() + timeout
        while True:
            try:
                return get_message(kernel, stream, max(0, min(TURN, end - time.monotonic())))
            except Empty:
                if not kernel.is_alive():
                    raise RuntimeError("the kernel died; perhaps the machine had no memory left") from None
                if time.monotonic() >= end:
                    raise

    return wait


def install() -> None:
    RunningKernel.get_message = noticing(RunningKernel.get_message)
