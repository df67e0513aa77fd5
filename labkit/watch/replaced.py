"""The one way to look into a running engine, or to plant a fault in it: put something in the place of a part.

A class says what may be replaced in its instances, or in itself, by a tuple of names, `watch_points`. A
subclass adds to what its bases name.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps

from labkit.errors import OptionError


@contextmanager
def replaced(owner: object, name: str, wrapper: Callable) -> Iterator[object]:
    """Inside the block, `owner.name` is what `wrapper(inner)` returns, and that is the block's value, too.

    owner: an instance, or a class to replace it in all instances. inner: what is there now, a bound method
    for example. Afterwards there is exactly what was there before, whether or not the block raised.
    Raises OptionError, with nothing changed, for a name that is none of the owner's watch points.
    """
    points = watch_points_of(owner)
    if name not in points:
        kind = owner if isinstance(owner, type) else type(owner)
        allowed = f"it lets {', '.join(points)} be watched" if points else "it has no watch points"
        raise OptionError(f"{kind.__name__}.{name} cannot be watched: {allowed}")
    is_own, before = name in vars(owner), vars(owner).get(name)
    stand_in = wrapper(getattr(owner, name))
    setattr(owner, name, stand_in)
    try:
        yield stand_in
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)  # so that its class's is found again


def watch_points_of(owner: object) -> list[str]:
    """The names that the class of `owner`, or `owner` if it is a class, and its bases declare, sorted."""
    kind = owner if isinstance(owner, type) else type(owner)
    return sorted({name for base in kind.__mro__ for name in vars(base).get("watch_points", ())})


def noting(note: Callable[..., object]) -> Callable[[Callable], Callable]:
    """A wrapper for `replaced`: calls `note` with a call's arguments, and then does the call."""

    def wrapper(inner: Callable) -> Callable:
        @wraps(inner)
        def noted(*args: object, **kwargs: object) -> object:
            note(*args, **kwargs)
            return inner(*args, **kwargs)

        return noted

    return wrapper


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
