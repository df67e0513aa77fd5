"""A setting of the whole process that threads need at once."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from threading import Lock, get_ident


class SharedContext:
    """A context that the first thread to come enters and the last one to go leaves.

    Entered by each thread for itself, one would give back what it had found of another, for good.
    make: a new context, to be entered.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self._make, self._held = make, ExitStack()
        self._lock = Lock()
        self._inside: set[int] = set()  # thread ids: one that an interrupt kept from leaving is no second one

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._held.close()  # what was entered when an interrupt came
                self._held.enter_context(self._make())
            self._inside.add(get_ident())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._inside == {get_ident()}:
                self._held.close()
            self._inside.discard(get_ident())
