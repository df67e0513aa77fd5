"""Tables of wrong parts of a gate, for parametrized tests."""

import re
from collections.abc import Callable, Mapping

import pytest


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
