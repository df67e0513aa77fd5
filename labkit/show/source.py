"""The source that runs, shown in a lesson."""

import difflib
import inspect
import textwrap

from IPython.display import Markdown

from labkit.paths import ROOT


def show_source(*objects: object) -> Markdown:
    """The source of functions, methods or classes of the package, as Markdown, each under the name of its
    file."""
    return Markdown("\n".join(_fenced(obj) for obj in objects))


def show_diff(before: object, after: object) -> Markdown:
    """The source of one function, method or class of the package and what changes to another, line by line,
    as Markdown."""
    lines = difflib.unified_diff(
        _source(before).splitlines(), _source(after).splitlines(), n=100, lineterm=""
    )
    body = "\n".join(list(lines)[3:])  # without the names of two files, which are made up, and a line number
    names = f"`{before.__qualname__}` in `{_path(before)}` → `{after.__qualname__}` in `{_path(after)}`"
    return Markdown(f"{names}\n```diff\n{body}\n```")


def _fenced(obj: object) -> str:
    return f"`{_path(obj)}`\n```python\n{_source(obj)}\n```"


def _source(obj: object) -> str:
    return textwrap.dedent(inspect.getsource(obj)).rstrip()


def _path(obj: object) -> str:
    path = inspect.getsourcefile(inspect.unwrap(obj))
    return path[len(str(ROOT)) + 1 :] if path.startswith(str(ROOT)) else path
