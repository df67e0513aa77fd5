"""The source that runs, shown in a lesson."""

import inspect
import textwrap

from IPython.display import Markdown

from labkit.model.checkpoint import ROOT


def show_source(*objects: object) -> Markdown:
    """Functions, methods or classes of the package as they stand in it, each under its file's name."""
    return Markdown("\n".join(_fenced(obj) for obj in objects))


def _fenced(obj: object) -> str:
    path = inspect.getsourcefile(inspect.unwrap(obj))
    source = textwrap.dedent(inspect.getsource(obj)).rstrip()
    shown = path[len(str(ROOT)) + 1 :] if path.startswith(str(ROOT)) else path
    return f"`{shown}`\n```python\n{source}\n```"
