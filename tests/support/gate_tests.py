"""The tests of every lesson's gate: wrong parts are refused by what they break, right ones pass."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from unittest.mock import patch

import pytest
from IPython.core.interactiveshell import InteractiveShell
from skeletons import solved_shell, steps_of

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


def mistake_tests(
    notebook: Path, mistakes: Iterable[tuple[int, str, str, str]]
) -> tuple[Callable[[], InteractiveShell], Callable]:
    """Of a notebook's steps: the fixture `shell`, where they have run, filled with their hints, and the test
    that likely mistakes are refused. mistakes: step, what is replaced, by what, words of the verdict."""
    steps = steps_of(notebook)

    @pytest.fixture(scope="module")
    def shell() -> InteractiveShell:
        return solved_shell(notebook)

    @pytest.mark.parametrize(("step", "before", "after", "words"), mistakes, ids=lambda each: str(each)[:30])
    def refused(shell: InteractiveShell, capsys, step: int, before: str, after: str, words: str) -> None:
        assert steps[step].solved.count(before) == 1
        capsys.readouterr()
        with patch.dict(shell.user_ns):  # the right part again afterwards
            shell.run_cell(steps[step].solved.replace(before, after)).raise_error()
        told = " ".join(capsys.readouterr().out.split())
        assert "not yet" in told and words in told, told

    return shell, refused
