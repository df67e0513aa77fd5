"""What a test's code does with the network: every address that it asks for, connects to or listens at."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

CALLS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.connect", "socket.bind", "socket.sendto")
_heard: list[list[tuple]] = []  # of each `network_calls` that is open


def _hear(event: str, arguments: tuple) -> None:
    if _heard and event in CALLS:
        for calls in _heard:
            calls.append((event, str(arguments[1:] if event != "socket.getaddrinfo" else arguments[:2])))
        raise OSError(f"{event} in a test that has no network")


sys.addaudithook(_hear)  # which cannot be taken away again, and does nothing while nobody listens


@contextmanager
def network_calls() -> Iterator[list[tuple]]:
    """Inside the block, every use of the network is refused with an OSError, and is in the list."""
    calls: list[tuple] = []
    _heard.append(calls)
    try:
        yield calls
    finally:
        _heard.remove(calls)
