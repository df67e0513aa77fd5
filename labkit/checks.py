"""Checks of arguments, settings and flags, and how error messages show a value."""

import argparse
import difflib
import functools
import inspect
import math
import operator
import reprlib
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any, TypeGuard, TypeVar

from labkit.errors import LabkitError, OptionError

Kind = TypeVar("Kind", bound=type)

SHOWN = 60  # characters of a value in a message
QUOTED = 300  # characters of another library's message
NAMED = 5  # names of a list of them


class ShortRepr(reprlib.Repr):
    """A repr that takes no longer for a large value than for a small one."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = SHOWN - 10
        self.maxother = 1000  # so that `shown` sees what is too long, and names the type instead

    def repr_int(self, value: int, level: int) -> str:
        """The number, or how many bits it has if they are more than 128."""
        return repr(value) if value.bit_length() <= 128 else f"a number of {value.bit_length()} bits"

    def repr_bytes(self, value: bytes | bytearray, level: int) -> str:
        """The bytes if they are few, else their type."""
        return repr(value) if len(value) < SHOWN else named(value)

    repr_bytearray = repr_bytes

    def repr_type(self, value: type, level: int) -> str:
        """A class by its name."""
        return f"the class {value.__name__}"

    def repr_dict(self, x: object, level: int) -> str:  # reprlib's own sorts all of it
        """A dict or a set by its type, unless it is empty."""
        return named(x) if x else repr(x)

    repr_set = repr_frozenset = repr_dict


def shown(value: object) -> str:
    """A value in a message: its repr where that is short and one line, else its type."""
    text = ShortRepr().repr(value)
    return text if len(text) <= SHOWN and "\n" not in text else named(value)


def named(value: object) -> str:
    """A value in a message by its type alone, such as "an object of type Tensor"."""
    return f"an object of type {type(value).__name__}"


def repr_of_changes(config: Any) -> str:
    """The repr of a dataclass, without fields that have their defaults: "SamplingParams(top_k=40)"."""
    values = [(field.name, getattr(config, field.name), field.default) for field in fields(config)]
    changed = [
        f"{name}={shown(value) if is_whole(value) else repr(value)}"  # Python writes no very long number
        for name, value, default in values
        if value != default
    ]
    return f"{type(config).__name__}({', '.join(changed)})"


def quoted(error: object) -> str:
    """What somebody else's error says, in a message: in one line, and cut where it is long."""
    text = " ".join(str(error).split())
    text = text if len(text) <= QUOTED else f"{text[:QUOTED]}..."
    return text.encode(errors="backslashreplace").decode()


def listed(names: Collection[str]) -> str:
    """Names out of a file, in a message: in order, the first of them where they are many."""
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(map(as_name, sorted(names)[:NAMED])) + more


def as_name(name: str) -> str:
    """A name out of a file, in a message: without quotes, if a terminal can show it as it is."""
    return name if name.isprintable() and len(name) <= SHOWN else shown(name)


def whole(value: Any) -> int | None:
    """A whole number of any type, NumPy's and torch's too, as int; None for all else, bools included."""
    if type(value) is int:
        return value
    # To torch, one number in a tensor of any shape is an index, and so is a bool.
    is_bool = isinstance(value, bool) or str(getattr(value, "dtype", "")) == "torch.bool"
    if is_bool or bool(getattr(value, "ndim", 0)):
        return None
    try:
        return operator.index(value)
    except Exception:  # whatever the value's own code raises
        return None


def is_whole(value: object) -> TypeGuard[int]:
    """Whether the value is of Python's own int type and no bool, as a setting must be."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether the value is Python's int or float, finite, and not beyond what a float holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def names_its_arguments(error: type[LabkitError], elsewhere: Mapping[str, str]) -> Callable[[Kind], Kind]:
    """A decorator of a class: it raises `error`, with advice, for a keyword that its constructor has not.

    elsewhere: keywords that other engines have, each with what to do here.
    """

    def decorate(kind: Kind) -> Kind:
        constructor: Any = kind.__init__  # type: ignore[misc]
        known = list(inspect.signature(kind).parameters)

        @functools.wraps(constructor)
        def checked(self: object, *args: object, **named: object) -> None:
            for name in named.keys() - known:
                close = difflib.get_close_matches(name, known, n=1)
                advice = f"did you mean {close[0]}?" if close else f"it has {', '.join(known)}"
                raise error(f"{kind.__name__} has no {shown(name)}: {elsewhere.get(name, advice)}")
            constructor(self, *args, **named)

        kind.__init__ = checked  # type: ignore[misc]
        return kind

    return decorate


def require(error: type[LabkitError], name: str, value: object, is_right: bool, what: str) -> None:
    """Raises `error` unless `is_right`, with an argument's name, its value and `what` it must be."""
    if not is_right:
        raise error(f"{name} must be {what}, not {shown(value)}")


def require_kind(name: str, value: object, kind: type, what: str) -> None:
    """Raises OptionError if the argument is not an instance of `kind`; `what` says what to give."""
    require(OptionError, name, value, isinstance(value, kind), what)


def require_count(name: str, value: object, most: int) -> None:
    """Raises OptionError if the argument is not an int from 1 to `most`."""
    is_count = is_whole(value) and 1 <= value <= most
    require(OptionError, name, value, is_count, f"a whole number from 1 to {most:,}")


def require_positive(config: object, *names: str) -> None:
    """Raises OptionError if one of these attributes of a config is not an int of 1 or more."""
    for name in names:
        value = getattr(config, name)
        require(OptionError, name, value, is_whole(value) and value >= 1, "a positive whole number")


def require_bool(config: object, name: str) -> None:
    """Raises OptionError if this attribute of a config is not True or False."""
    value = getattr(config, name)
    require(OptionError, name, value, isinstance(value, bool), "True or False")


def whole_number(at_least: int, at_most: int) -> Callable[[str], int]:
    """The type of a flag that takes a whole number in this range, both ends included."""
    return _number(int, "a whole number", at_least, at_most)


def real_number(at_least: float, at_most: float) -> Callable[[str], float]:
    """The type of a flag that takes a number in this range, both ends included."""
    return _number(float, "a number", at_least, at_most)


def _number(kind: Callable[[str], Any], what: str, at_least: float, at_most: float) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan  # which is in no range
        if at_least <= value <= at_most:
            return value
        raise argparse.ArgumentTypeError(f"{shown(text)} is not {what} from {at_least:,} to {at_most:,}")

    return convert
