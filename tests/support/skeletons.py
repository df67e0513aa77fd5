"""A notebook's skeletons, and the lines that its hints put into their gaps."""

import io
import re
import tempfile
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


def definitions(source: str) -> str:
    """A step's cell up to its verdict, which it displays; all of one that displays none."""
    return source.partition("\ndisplay(")[0]


def judged(source: str) -> str:
    """A step's cell with its verdict, without the line below that measures what the part costs."""
    part, display, rest = source.partition("\ndisplay(")
    return part + display + rest.partition("\n")[0]


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


def shell_for(notebook: Path) -> InteractiveShell:
    """A shell in which the notebook's first two cells have run, the bootstrap and the imports. Step cells
    need no other cells than these."""
    cells = nbformat.read(notebook, as_version=4).cells
    sources = [cell.source for cell in cells if cell.cell_type == "code"]
    shell = InteractiveShell()
    for source in sources[:2]:
        shell.run_cell(source).raise_error()
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
            shell = shell_for(notebook)
        for step in steps_of(notebook):
            with redirect_stdout(io.StringIO()) as out:
                shell.run_cell(step.solved).raise_error()
            printed.append(out.getvalue())
        return Filled(shell.user_ns, tuple(printed), progress())


WITH_STEPS = [path for path in CORES if steps_of(path)]
