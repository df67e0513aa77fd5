"""JSON read as the types that dataclasses declare."""

from functools import cache
from inspect import Parameter, signature
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from labkit.checks import is_number, is_whole, quoted, shown
from labkit.errors import RecordError

PLAIN = {  # what a value must be, in words, and whether it is
    str: ("text", lambda value: isinstance(value, str)),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number", lambda value: is_whole(value) and is_number(value)),
    float: ("a finite number", is_number),
    list: ("a list", lambda value: isinstance(value, list | tuple)),
    dict: ("an object", lambda value: isinstance(value, dict)),
}


def read_as(kind: Any, raw: Any, where: str) -> Any:
    """`raw`, a value of JSON, as `kind`: a dataclass or NamedTuple of such, a tuple, a mapping from text, one
    of `PLAIN`, or one of these or None.

    Keys that a dataclass does not have are ignored. Raises RecordError saying what does not fit, and where.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return raw
    if kind in PLAIN:
        must_be, fits = PLAIN[kind]
        if not fits(raw):
            raise RecordError(f"{where} must be {must_be}, not {shown(raw)}")
        return raw
    if origin in (Union, UnionType):
        return None if raw is None else read_as(parts[0], raw, where)
    if origin is tuple:
        return tuple(read_items(parts, raw, where))
    if origin is not None:  # a mapping
        found = read_as(dict, raw, where)
        return {key: read_as(parts[1], value, f"{where}.{quoted(key)}") for key, value in found.items()}
    if hasattr(kind, "from_dict"):
        return kind.from_dict(read_as(dict, raw, where), where)
    if hasattr(kind, "_fields") and isinstance(raw, list):
        kinds = tuple(types_of(kind).values())
        of_required = kinds[: len(required(kind))]
        return kind(*read_items(of_required if len(raw) == len(of_required) else kinds, raw, where))
    return read_fields(kind, read_as(dict, raw, where), where)


def read_fields(kind: Any, found: dict, where: str) -> Any:
    """An object with keys as the fields of `kind`."""
    if missing := [name for name in required(kind) if name not in found]:
        raise RecordError(f"{where} lacks {', '.join(missing)}")
    of_fields = {name: of for name, of in types_of(kind).items() if name in found}
    return kind(**{name: read_as(of, found[name], f"{where}.{name}") for name, of in of_fields.items()})


def read_items(kinds: tuple, raw: Any, where: str) -> list:
    """The items of a list: as many of one kind as there are, or one of each kind."""
    items = read_as(list, raw, where)
    if kinds[1:] == (...,):
        if kinds[0] in PLAIN and all(map(PLAIN[kinds[0]][1], items)):
            return items  # long lists of numbers
        return [read_as(kinds[0], item, f"{where}[{i}]") for i, item in enumerate(items)]
    if len(items) != len(kinds):
        raise RecordError(f"{where} must be a list of {len(kinds)}, not {shown(raw)}")
    return [read_as(kind, item, where) for kind, item in zip(kinds, items, strict=True)]


@cache
def types_of(kind: type) -> dict[str, Any]:
    """The types of the arguments that a dataclass or a NamedTuple takes, by name."""
    hints = get_type_hints(kind)
    return {name: hints[name] for name in signature(kind).parameters}


@cache
def required(kind: type) -> list[str]:
    return [name for name, each in signature(kind).parameters.items() if each.default is Parameter.empty]
