"""JSON read as the types that dataclasses declare: what fits, and how what does not is named."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest

from labkit.errors import RecordError
from labkit.results.typed import read_as


class Span(NamedTuple):
    name: str
    start: float


@dataclass(frozen=True)
class Run:
    steps: int
    seconds: tuple[float, ...]
    paths: dict[str, int]
    spans: tuple[Span, ...] = ()
    note: str | None = None


RAW = {"steps": 2, "seconds": [1, 0.5], "paths": {"a": 0}, "spans": [["x", -1.0]], "unknown": {}}


def test_objects_become_dataclasses_and_lists_tuples():
    assert read_as(Run, RAW, "it") == Run(2, (1, 0.5), {"a": 0}, (Span("x", -1.0),))
    assert read_as(tuple[Span, ...], [{"name": "y", "start": 1}], "it") == (Span("y", 1),)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": True}, "it.steps must be a whole number, not True"),
        ({"seconds": [1, float("nan")]}, r"it.seconds\[1\] must be a finite number, not nan"),
        ({"paths": {"a": "x"}}, "it.paths.a must be a whole number, not 'x'"),
        ({"spans": [["x"]]}, r"it.spans\[0\] must be a list of 2, not \['x'\]"),
        ({"note": 5}, "it.note must be text, not 5"),
        ({"paths": []}, r"it.paths must be an object, not \[\]"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(changes, message):
    with pytest.raises(RecordError, match=message):
        read_as(Run, RAW | changes, "it")


def test_what_is_missing_is_named():
    with pytest.raises(RecordError, match="it lacks seconds, paths"):
        read_as(Run, {"steps": 1}, "it")
