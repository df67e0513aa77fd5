"""The two tests of every lesson's gate: wrong parts are refused by what they break, right ones pass."""

import re
from collections.abc import Callable, Iterable, Mapping

import pytest

from labkit import lab


def gate_tests(
    number: str, option: str, wrong: Mapping[Callable, str], right: Iterable[Callable]
) -> tuple[Callable, Callable]:
    """Of a lesson's part. wrong: by part, a pattern for its verdict."""

    def named(part: Callable) -> str:
        return getattr(part, "__name__", type(part).__name__)

    @pytest.mark.parametrize("part", wrong, ids=named)
    def refused(part: Callable) -> None:
        report = lab.start(number).check(**{option: part})
        assert not report.ok and re.search(wrong[part], report.text), report

    @pytest.mark.parametrize("part", right, ids=named)
    def passes(part: Callable) -> None:
        report = lab.start(number).check(**{option: part})
        assert report.ok and report.text.startswith(f"{option}: right."), report

    return refused, passes
