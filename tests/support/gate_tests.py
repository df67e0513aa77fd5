"""The test of every lesson's gate: likely mistakes are refused by what they break, other right ways pass."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from IPython.core.interactiveshell import InteractiveShell
from skeletons import definitions, judged, shell_for, steps_of

from labkit import paths


def mistake_tests(
    notebook: Path, mistakes: Iterable[tuple[int, str, str, str]]
) -> tuple[Callable[[], InteractiveShell], Callable]:
    """Of a notebook's steps: the fixture `shell`, where their parts are, filled with their hints, and the
    test that likely mistakes are refused, and other ways that are right are not.

    mistakes: step, what is replaced, by what, words of the verdict; none where it is right.
    """
    steps = steps_of(notebook)

    @pytest.fixture(scope="module")
    def shell(tmp_path_factory) -> Iterator[InteractiveShell]:
        with patch.object(paths, "MINE", tmp_path_factory.mktemp("mine")):  # where progress is noted
            shell = shell_for(notebook)
            for step in steps:
                shell.run_cell(definitions(step.solved)).raise_error()
            yield shell

    @pytest.mark.parametrize(("step", "before", "after", "words"), mistakes, ids=lambda each: str(each)[:30])
    def verdict(shell: InteractiveShell, capsys, step: int, before: str, after: str, words: str) -> None:
        source = judged(steps[step].solved)
        assert source.count(before) == 1
        capsys.readouterr()
        right = dict(shell.user_ns)
        shell.run_cell(source.replace(before, after))
        shell.user_ns.update(right)  # and what Triton's interpreter has put beside it stays
        told = " ".join(capsys.readouterr().out.split())
        assert bool(re.match(r"✓|\w+: right\b", told)) != bool(words) and words in told, told

    return shell, verdict
