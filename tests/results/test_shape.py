"""Shapes of JSON: what fits, and how what does not is named. What records must be is tested with them."""

import pytest

from labkit.errors import RecordError
from labkit.results.shape import COUNT, FLAG, NUMBER, POSITIVE, TEXT, TIME, OrNull, check_shape

FITS = [
    (TEXT, "x"),
    (FLAG, True),
    (NUMBER, -0.5),
    (TIME, 0),
    (POSITIVE, 0.1),
    (COUNT, 3),
    (OrNull(TEXT), None),
    ([COUNT], []),
    ([COUNT, ...], [1, 2]),
    ((TEXT, NUMBER), ["x", 1]),
    ({str: COUNT}, {"any": 1, "key": 2}),
    ({"a": [{"b": TEXT}]}, {"a": [{"b": "x", "more": None}], "more": 1}),
]


@pytest.mark.parametrize(("shape", "value"), FITS)
def test_what_fits_passes(shape, value):
    check_shape("file", value, shape)


@pytest.mark.parametrize(
    ("shape", "value", "message"),
    [
        (COUNT, True, "file: what it holds must be a whole number of 0 or more, not True"),
        (POSITIVE, 0, "must be a finite number above 0, not 0"),
        ([COUNT, ...], [], "must be a list that is not empty"),
        ((TEXT, NUMBER), ["x"], "must be a list of 2"),
        ({"a": {"b": TEXT}}, {"a": {}}, "file lacks b in a"),
        ({"a": [{"b": TEXT}]}, {"a": [{"b": "x"}, {"b": 5}]}, r"file: a\[1\]\.b must be text, not 5"),
        ({str: COUNT}, {"any": -1}, "file: any must be a whole number of 0 or more, not -1"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(shape, value, message):
    with pytest.raises(RecordError, match=message):
        check_shape("file", value, shape)
