"""The kernels in which nbval runs notebooks: a dead one is noticed at once, and each has a new reader."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty

from nbval.kernel import RunningKernel
from nbval.plugin import IPyNbFile

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


def forgetting(setup: Callable[[IPyNbFile], None]) -> Callable[[IPyNbFile], None]:
    """`IPyNbFile.setup`, which starts the notebook's kernel, after all that was noted of a reader is gone."""

    def begin(notebook: IPyNbFile) -> None:
        mine = Path(os.environ["LABKIT_MINE"])
        shutil.rmtree(mine, ignore_errors=True)
        mine.mkdir()
        setup(notebook)

    return begin


def install() -> None:
    RunningKernel.get_message = noticing(RunningKernel.get_message)
    IPyNbFile.setup = forgetting(IPyNbFile.setup)
