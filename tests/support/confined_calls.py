"""What a confined process is told to do: functions that it can import."""

import os
import time


def obey(what: str) -> str:
    """Do something that a call should not, or say who did not."""
    if what == "raise":
        raise KeyError("gone")
    if what == "panic":
        raise SystemExit("a BaseException")
    if what == "grow":
        bytearray(2**32)
    if what == "hang":
        time.sleep(600)
    if what == "die":
        os._exit(9)
    return f"{what} in {os.getpid()}"
