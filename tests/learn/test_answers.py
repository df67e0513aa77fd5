"""Answers are compared by what they hold."""

import pytest

from labkit.learn.answers import beside, difference


def test_of_dictionaries_the_first_item_that_differs_is_told():
    expected = {"sent": True, "rows": ["A"]}
    assert difference({"sent": True, "rows": {"A"}}, expected) == "'rows': {'A'}, expected ['A']."
    assert difference({"sent": True}, expected) == f"{{'sent': True}}, expected {expected}."


@pytest.mark.parametrize(
    ("answer", "expected", "same"),
    [
        (10**15 + 1, 10**15, False),
        (1e9, 10**9, True),
        (0.1 + 0.2, 0.3, True),
        (0.301, 0.3, False),
        (True, 1, True),
        ("1", 1, False),
        ({"a": (1,)}, {"a": [1]}, True),
        ({"a": [1], "b": 2}, {"a": [1]}, False),
        (range(3), [0, 1, 2], True),
        ({1, 2}, {2, 1}, True),
        ([1, 2], {1, 2}, False),
        (float("nan"), 1.0, False),
        (None, 0, False),
    ],
)
def test_answers_are_compared_by_what_they_hold(answer, expected, same):
    assert (difference(answer, expected) == "") == same


def test_two_numbers_are_told_with_as_many_digits_as_show_the_difference():
    assert beside(0.871, 0.902) == ("0.871", "0.902")
    assert beside(0.87121, 0.87123) == ("0.87121", "0.87123")
