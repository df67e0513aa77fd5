"""A failure in the middle of an engine's work, made on purpose."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from labkit.watch.replaced import replaced


class PlantedError(RuntimeError):
    """Raised where a failure was planted."""


@contextmanager
def planted_failure(
    owner: object,
    name: str,
    at_call: int = 0,
    look: Callable[[], object] = lambda: None,
    *,
    error: Callable[[str], BaseException] = PlantedError,
    num_calls: float = 1,
    is_behind: bool = False,
) -> Iterator[None]:
    """Inside the block, the call of `owner.name` with the number `at_call`, from 0, raises PlantedError in
    place of working, and all others work.

    look: called just before it raises. error: makes what is raised instead, from a message. num_calls: so
    many calls fail in a row, math.inf for all from there on. is_behind: they raise when they have done their
    work. Raises OptionError if the owner does not let `name` be watched.
    """
    calls = 0

    def failing(inner: Callable) -> Callable:
        def call(*args: object, **kwargs: object) -> object:
            nonlocal calls
            calls += 1
            fails = at_call < calls <= at_call + num_calls
            if fails and not is_behind:
                look()
                raise error(f"{name} was made to fail")
            made = inner(*args, **kwargs)
            if fails:
                look()
                raise error(f"{name} was made to fail, its work done")
            return made

        return call

    with replaced(owner, name, failing):
        yield
