"""Tables of wrong and right answers to exercises, for parametrized tests."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from labkit.learn import Exercise


def refused(*tables: tuple[Exercise, Mapping[str, tuple[Callable, str]]]) -> pytest.MarkDecorator:
    """For each exercise what a wrong answer does, the answer, and words that its verdict must have."""
    rows = [
        pytest.param(exercise, attempt, words, id=f"{exercise.name} {name}")
        for exercise, table in tables
        for name, (attempt, words) in table.items()
    ]
    return pytest.mark.parametrize(("exercise", "attempt", "words"), rows)


def accepted(*tables: tuple[Exercise, Mapping[str, Callable]]) -> pytest.MarkDecorator:
    """For each exercise what a right answer is made of, and the answer."""
    rows = [
        pytest.param(exercise, attempt, id=f"{exercise.name} {name}")
        for exercise, table in tables
        for name, attempt in table.items()
    ]
    return pytest.mark.parametrize(("exercise", "attempt"), rows)


def refused_by(
    table: Mapping[Callable[[Callable], None], Mapping[type, str]],
) -> pytest.MarkDecorator:
    """For each trial of a gate the parts that it refuses, and words of the refusal, as a pattern for them."""
    rows = [
        pytest.param(trial, part, re.escape(words), id=f"{trial.__name__} {part.__name__}")
        for trial, parts in table.items()
        for part, words in parts.items()
    ]
    return pytest.mark.parametrize(("trial", "part", "words"), rows)


def is_right(exercise: Exercise, attempt: Callable) -> bool:
    return exercise.grade(attempt) == f"{exercise.name}: right, all {len(exercise.cases)} cases."


def named(positional: Callable) -> Callable:
    """An answer whose parameters have other, shorter names than the exercise's."""

    def attempt(**arguments: Any) -> Any:
        return positional(*arguments.values())

    return attempt
