"""A notebook's skeletons, and the lines that its hints put into their gaps."""

import io
import re
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nbformat
from IPython.core.interactiveshell import InteractiveShell
from notebook_files import CORES

from labkit import paths
from labkit.learn.kept import GAP_MARK
from labkit.learn.progress import LessonProgress, progress

GAP = re.compile(rf"^ *{GAP_MARK}\n.*$", re.MULTILINE)  # with the line that it stands above
HINT = re.compile(r"<details>.*?</details>", re.DOTALL)
PYTHON = re.compile(r"```python\n(.*?)\n```", re.DOTALL)


@dataclass(frozen=True)
class Step:
    """A cell with gaps, and the pieces of code that the collapsed hints below it hold, one per gap."""

    skeleton: str
    pieces: tuple[str, ...]

    @property
    def solved(self) -> str:
        """The cell with its gaps filled."""
        assert len(GAP.findall(self.skeleton)) == len(self.pieces), "not one piece per gap"
        rest = iter(self.pieces)
        return GAP.sub(lambda _: next(rest), self.skeleton)


def steps_of(notebook: Path) -> list[Step]:
    """The notebook's cells with gaps, in order."""
    cells = nbformat.read(notebook, as_version=4).cells
    return [
        Step(
            cell.source, tuple(piece for hint in HINT.findall(below.source) for piece in PYTHON.findall(hint))
        )
        for cell, below in pairwise(cells)
        if cell.cell_type == "code" and GAP.search(cell.source)
    ]


def solved(notebook: Path) -> tuple[InteractiveShell, Iterator[None]]:
    """A shell in which the notebook's first two cells have run, the bootstrap and the imports, and the steps
    to come: each `next` runs one more, with its gaps filled. Step cells need no other cells than these."""
    cells = nbformat.read(notebook, as_version=4).cells
    sources = [cell.source for cell in cells if cell.cell_type == "code"]
    shell = InteractiveShell()
    for source in sources[:2]:
        shell.run_cell(source).raise_error()
    return shell, (shell.run_cell(step.solved).raise_error() for step in steps_of(notebook))


def solved_shell(notebook: Path) -> InteractiveShell:
    """The shell when all steps have run, with their gaps filled."""
    shell, steps = solved(notebook)
    for _ in steps:
        pass
    return shell


@dataclass(frozen=True)
class Filled:
    """A notebook whose steps have all run with their gaps filled: its names, what each step printed, and what
    was noted of it in a reader's progress."""

    names: dict[str, Any]
    printed: tuple[str, ...]
    noted: dict[str, LessonProgress]

    @property
    def last_lines(self) -> list[str]:
        """The last line that each step printed."""
        return [text.splitlines()[-1] for text in self.printed]


@cache  # gates take their time
def filled(notebook: Path) -> Filled:
    """The notebook with every step solved."""
    printed = []
    with tempfile.TemporaryDirectory() as mine, patch.object(paths, "MINE", Path(mine)):
        with redirect_stdout(io.StringIO()):
            shell, steps = solved(notebook)
        while True:
            with redirect_stdout(io.StringIO()) as out:
                if next(steps, steps) is steps:
                    break
            printed.append(out.getvalue())
        return Filled(shell.user_ns, tuple(printed), progress())


WITH_STEPS = [path for path in CORES if steps_of(path)]
