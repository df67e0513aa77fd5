"""The source that runs, shown in a lesson."""

import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff
from html import escape

from IPython.display import Markdown

from labkit.checks import shown
from labkit.errors import OptionError
from labkit.paths import ROOT

CODE = "font-size:12px; line-height:1.4; white-space:pre; overflow-x:auto"  # a line is not wrapped
# By a line's sign, for a light ground and a dark one. Where styles are taken away, as on GitHub, signs stay.
COLOURS = {"-": "background:rgba(248,81,73,0.15)", "+": "background:rgba(46,160,67,0.15)"}


def show_source(*objects: object) -> Markdown:
    """The source of functions, methods, classes or Triton kernels of the package, as Markdown, each under the
    name of its file. Raises OptionError for what has no source."""
    code = (_source(getattr(obj, "fn", obj)) for obj in objects)
    return Markdown("\n".join(f"`{path}`\n```python\n{source}\n```" for path, source in code))


def show_diff(before: object, after: object) -> "Diff":
    """The source of one function, method, class or Triton kernel of the package and what changes to another,
    line by line. Raises OptionError for what has no source."""
    functions = [getattr(obj, "fn", obj) for obj in (before, after)]
    (path, source), (path_after, source_after) = map(_source, functions)
    first, second = (function.__qualname__ for function in functions)
    lines = unified_diff(source.splitlines(), source_after.splitlines(), n=len(source), lineterm="")
    return Diff(f"{first} in {path}\n→ {second} in {path_after}", list(lines)[3:])  # after its own head


@dataclass(frozen=True)
class Diff:
    """Two pieces of code, shown as what changes from the first to the second: in colour, or as text.

    title: the name and the file of each. lines: of both, each after its sign: "-", "+", or a blank.
    """

    title: str
    lines: Sequence[str]

    def __repr__(self) -> str:
        return "\n".join([self.title, *self.lines])

    def _repr_html_(self) -> str:
        return f'{escape(self.title)}\n<pre style="{CODE}">{"".join(map(_coloured, self.lines))}</pre>'


def _coloured(line: str) -> str:
    """A line of HTML. Where styles are taken away, its line feed is what ends it."""
    colour = COLOURS.get(line[:1], "")
    return f'<span style="display:block; {colour}">{escape(line)}\n</span>'


def _source(obj: object) -> tuple[str, str]:
    """The path of an object's file in the project, and its source."""
    try:
        source = textwrap.dedent(inspect.getsource(obj)).rstrip()
    except (TypeError, OSError):
        raise OptionError(
            f"{shown(obj)} has no source: hand over a function, a method, a class or a kernel"
        ) from None
    source = source.replace("  # fmt: skip", "")  # which is for a formatter
    path = inspect.getsourcefile(inspect.unwrap(obj))
    return path[len(str(ROOT)) + 1 :] if path.startswith(str(ROOT)) else path, source
