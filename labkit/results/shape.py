"""What a value read from JSON must look like, said as data, and checked once for all its readers.

A shape is one of the kinds below; OrNull(shape); a list with the shape of its items, and with an ellipsis
behind it if there must be one; a tuple with a shape for each item; a dictionary {str: shape} whose keys may
be any; or a dictionary with the shape of each key that must be there.
"""

from collections.abc import Callable
from dataclasses import dataclass

from labkit.checks import is_number, is_whole, quoted, shown
from labkit.errors import RecordError


@dataclass(frozen=True)
class Kind:
    """The shape of a value without parts. name: what an error calls it. is_one: whether a value has it."""

    name: str
    is_one: Callable[[object], bool]


@dataclass(frozen=True)
class OrNull:
    """The shape of null, or of a value of the given shape."""

    shape: "Shape"


TEXT = Kind("text", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
NUMBER = Kind("a finite number", is_number)
TIME = Kind("a finite number of 0 or more", lambda value: is_number(value) and value >= 0)
POSITIVE = Kind("a finite number above 0", lambda value: is_number(value) and value > 0)
COUNT = Kind("a whole number of 0 or more", lambda value: is_whole(value) and TIME.is_one(value))

Shape = Kind | OrNull | list | tuple | dict


def check_shape(name: str, value: object, shape: Shape, where: str = "") -> None:
    """Raises RecordError unless `value`, at `where` in `name`, has the shape; it says which part has not."""
    if isinstance(shape, Kind):
        if not shape.is_one(value):
            raise misfit(name, where, value, shape.name)
    elif isinstance(shape, OrNull):
        if value is not None:
            check_shape(name, value, shape.shape, where)
    elif isinstance(shape, list):
        item_shape, *at_least_one = shape
        if not isinstance(value, list | tuple):
            raise misfit(name, where, value, "a list")
        if at_least_one and not value:
            raise misfit(name, where, value, "a list that is not empty")
        for i, item in enumerate(value):
            if not (isinstance(item_shape, Kind) and item_shape.is_one(item)):  # no path where none is needed
                check_shape(name, item, item_shape, f"{where}[{i}]")
    elif isinstance(shape, tuple):
        if not isinstance(value, list | tuple) or len(value) != len(shape):
            raise misfit(name, where, value, f"a list of {len(shape)}")
        for i, (item, kind) in enumerate(zip(value, shape, strict=True)):
            check_shape(name, item, kind, f"{where}[{i}]")
    else:
        if not isinstance(value, dict):
            raise misfit(name, where, value, "an object")
        keys = value if str in shape else shape
        if missing := [key for key in keys if key not in value]:
            raise RecordError(f"{name} lacks {', '.join(missing)}{where and f' in {quoted(where)}'}")
        for key in keys:
            check_shape(name, value[key], shape[str if str in shape else key], f"{where}.{key}".strip("."))


def misfit(name: str, where: str, value: object, what: str) -> RecordError:
    """The error that says what the value at `where` must be, and what it is."""
    return RecordError(f"{name}: {quoted(where) or 'what it holds'} must be {what}, not {shown(value)}")
