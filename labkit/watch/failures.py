"""A failure in the middle of an engine's work, made on purpose."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from labkit.watch.replaced import replaced


class PlantedError(RuntimeError):
    """Raised where a failure was planted."""


@contextmanager
def planted_failure(
    owner: object, name: str, at_call: int = 0, look: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Inside the block, the call of `owner.name` with the number `at_call`, from 0, raises PlantedError in
    place of working, and all others work.

    look: called just before it raises. Raises OptionError if the owner does not let `name` be watched.
    """
    calls = 0

    def failing_once(inner: Callable) -> Callable:
        def call(*args: object, **kwargs: object) -> object:
            nonlocal calls
            calls += 1
            if calls - 1 == at_call:
                look()
                raise PlantedError(f"{name} was made to fail")
            return inner(*args, **kwargs)

        return call

    with replaced(owner, name, failing_once):
        yield
