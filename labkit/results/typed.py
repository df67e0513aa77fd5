"""JSON read as the types that dataclasses declare: a file that does not fit them is refused, once for all."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from inspect import Parameter, signature
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from labkit.checks import is_number, is_whole, quoted, shown
from labkit.errors import RecordError

T = TypeVar("T")


class Must(NamedTuple):
    """What a value must be, in words, and whether it is."""

    be: str
    fits: Callable[[Any], bool]


Count = Annotated[int, Must("0 or more", lambda value: value >= 0)]
Time = Annotated[float, Must("0 or more", lambda value: value >= 0)]
Chance = Annotated[float, Must("from 0 to 1", lambda value: 0 <= value <= 1)]
Positive = Annotated[float, Must("above 0", lambda value: value > 0)]
Some = Annotated[tuple[T, ...], Must("a list that is not empty", bool)]

PLAIN = {
    str: Must("text", lambda value: isinstance(value, str)),
    bool: Must("true or false", lambda value: isinstance(value, bool)),
    int: Must("a whole number", lambda value: is_whole(value) and is_number(value)),
    float: Must("a finite number", is_number),
}


def read_as(kind: Any, raw: Any, where: str) -> Any:
    """`raw`, a value of JSON, as `kind`: a dataclass or NamedTuple of such, a tuple, a mapping from text, one
    of `PLAIN` or of the types above, or one of these or None.

    Keys that a dataclass does not have are ignored. Raises RecordError saying what does not fit, and where.
    """
    origin, parts = taken_apart(kind)
    if kind is Any:
        return raw
    if kind in PLAIN:
        return checked(PLAIN[kind], raw, where)
    if origin is Annotated:
        return checked(parts[1], read_as(parts[0], raw, where), where)
    if origin in (Union, UnionType):
        return None if raw is None else read_as(parts[0], raw, where)
    if origin is tuple:
        return tuple(read_items(parts, checked(LIST, raw, where), where))
    if origin in (dict, Mapping):
        found = checked(OBJECT, raw, where)
        return {key: read_as(parts[1], value, f"{where}.{quoted(key)}") for key, value in found.items()}
    if hasattr(kind, "from_dict"):
        return kind.from_dict(checked(OBJECT, raw, where), where)
    if hasattr(kind, "_fields") and isinstance(raw, list | tuple):
        kinds = tuple(types_of(kind).values())
        if len(raw) == len(kinds) - len(optional(kind)):  # all that have no default
            kinds = kinds[: len(raw)]
        return kind(*read_items(kinds, list(raw), where))
    return read_fields(kind, checked(OBJECT, raw, where), where)


LIST = Must("a list", lambda value: isinstance(value, list | tuple))
OBJECT = Must("an object", lambda value: isinstance(value, dict))


def checked(must: Must, value: Any, where: str) -> Any:
    """The value itself. Raises RecordError if it is not what it must be."""
    if must.fits(value):
        return value
    raise RecordError(f"{where} must be {must.be}, not {shown(value)}")


def read_items(kinds: tuple, raw: list, where: str) -> list:
    """The items of a list: as many of one kind as there are, or one of each kind."""
    if kinds[1:] == (...,):
        if (fits := fit_for(kinds[0])) and all(map(fits, raw)):
            return raw  # long lists of numbers
        return [read_as(kinds[0], item, f"{where}[{i}]") for i, item in enumerate(raw)]
    checked(Must(f"a list of {len(kinds)}", lambda items: len(items) == len(kinds)), raw, where)
    return [read_as(kind, item, where) for kind, item in zip(kinds, raw, strict=True)]


def read_fields(kind: Any, raw: dict, where: str, flat: str | None = None) -> Any:
    """An object with keys as the fields of `kind`. flat: a field whose own fields stand beside."""
    types = types_of(kind)
    if missing := [name for name in types if name not in raw and name not in optional(kind) | {flat}]:
        raise RecordError(f"{where} lacks {', '.join(missing)}")
    return kind(
        **{
            name: read_as(of, raw, where) if name == flat else read_as(of, raw[name], f"{where}.{name}")
            for name, of in types.items()
            if name in raw or name == flat
        }
    )


@cache
def fit_for(kind: Any) -> Callable[[Any], bool] | None:
    """Whether a value is of a kind without parts; None for other kinds."""
    base, *musts = taken_apart(kind)[1] if get_origin(kind) is Annotated else [kind]
    if base not in PLAIN:
        return None
    is_of_kind, *fits = [must.fits for must in (PLAIN[base], *musts)]
    return (lambda value: is_of_kind(value) and all(fit(value) for fit in fits)) if fits else is_of_kind


@cache
def taken_apart(kind: Any) -> tuple[Any, tuple]:
    """A type's origin and its arguments."""
    if get_origin(kind) is Annotated:
        return Annotated, (kind.__origin__, *kind.__metadata__)
    return get_origin(kind), get_args(kind)


@cache
def types_of(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields, or a NamedTuple's, by name."""
    hints = get_type_hints(kind, include_extras=True)
    names = getattr(kind, "_fields", None) or [field.name for field in fields(kind)]
    return {name: hints[name] for name in names}


@cache
def optional(kind: type) -> set[str | None]:
    """The fields that have defaults."""
    parameters = signature(kind).parameters.values()
    return {parameter.name for parameter in parameters if parameter.default is not Parameter.empty}
