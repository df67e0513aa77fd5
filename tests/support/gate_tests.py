"""The test of every lesson's gate: likely mistakes are refused by what they break, other right ways pass."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from IPython.core.interactiveshell import InteractiveShell
from skeletons import solved_shell, steps_of

from labkit import paths
from labkit.learn.gates import Gate, Report


def mistake_tests(
    notebook: Path, mistakes: Iterable[tuple[int, str, str, str]]
) -> tuple[Callable[[], InteractiveShell], Callable]:
    """Of a notebook's steps: the fixture `shell`, where they have run, filled with their hints, and the test
    that likely mistakes are refused, and other ways that are right are not.

    mistakes: step, what is replaced, by what, words of the verdict; none where it is right.
    """
    steps = steps_of(notebook)

    @pytest.fixture(scope="module")
    def shell(tmp_path_factory) -> Iterator[InteractiveShell]:
        with patch.object(paths, "MINE", tmp_path_factory.mktemp("mine")):  # where progress is noted
            with patch.object(Gate, "check", lambda *_, **__: Report(True, "right")):  # or it takes minutes
                shell = solved_shell(notebook)
            yield shell

    @pytest.mark.parametrize(("step", "before", "after", "words"), mistakes, ids=lambda each: str(each)[:30])
    def judged(shell: InteractiveShell, capsys, step: int, before: str, after: str, words: str) -> None:
        assert steps[step].solved.count(before) == 1
        capsys.readouterr()
        with patch.dict(shell.user_ns):  # the right part again afterwards
            shell.run_cell(steps[step].solved.replace(before, after))
        told = " ".join(capsys.readouterr().out.split())
        assert bool(re.match(r"✓|\w+: right\b", told)) != bool(words) and words in told, told

    return shell, judged
