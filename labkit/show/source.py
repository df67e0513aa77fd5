"""The source that runs, shown in a lesson."""

import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape

from IPython.display import Markdown

from labkit.checks import shown
from labkit.errors import OptionError
from labkit.paths import ROOT

ALIKE = 0.5  # of two pieces of code: where they have less in common, marks would be on almost all words
WORDS, NOT_A_WORD = re.compile(r"\w+|\s+|."), re.compile(r"\W")
CODE = "font-size:12px; line-height:1.4; white-space:pre; overflow-x:auto"  # a line is not wrapped
# Colours for a light ground and a dark one. Where styles are taken away, as on GitHub, lines keep their
# signs, and changed words are bold: a tag that no sanitizer refuses.
RED, GREEN = "248,81,73", "46,160,67"
LINE = "display:block; background:rgba({},0.15)"
WORD = "background:rgba({},0.4)"


def show_source(*objects: object) -> Markdown:
    """The source of functions, methods, classes or Triton kernels of the package, as Markdown, each under the
    name of its file. Raises OptionError for what has no source."""
    code = (_source(getattr(obj, "fn", obj)) for obj in objects)
    return Markdown("\n".join(f"`{path}`\n```python\n{source}\n```" for path, source in code))


def show_diff(before: object, after: object) -> "Diff":
    """The source of one function, method, class or Triton kernel of the package and what changes to another,
    line by line. Raises OptionError for what has no source."""
    before, after = (getattr(obj, "fn", obj) for obj in (before, after))
    (path, source), (path_after, source_after) = _source(before), _source(after)
    names = (before.__qualname__, path), (after.__qualname__, path_after)
    return Diff(names, source.splitlines(), source_after.splitlines())


@dataclass(frozen=True)
class Diff:
    """Two pieces of code, shown as what changes from the first to the second: in colour, with changed words
    marked, or as text.

    names: the name and the file of each.
    """

    names: tuple[tuple[str, str], ...]
    before: Sequence[str]
    after: Sequence[str]

    def __repr__(self) -> str:
        before, after = (f"{name} in {path}" for name, path in self.names)
        lines = [before, f"→ {after}"]
        for same, removed, added in self._parts():
            lines += [f" {line}" for line in same]
            lines += [f"-{line}" for line in removed] + [f"+{line}" for line in added]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        names = " → ".join(f"<code>{escape(name)}</code> in <code>{path}</code>" for name, path in self.names)
        lines = []
        for same, before, after in self._parts():
            lines += [f" {escape(line)}\n" for line in same]
            removed, added = _marked("\n".join(before), "\n".join(after))
            lines += [_coloured("-", line, RED) for line in removed]
            lines += [_coloured("+", line, GREEN) for line in added]
        return f'{names}\n<pre style="{CODE}">{"".join(lines)}</pre>'

    def _parts(self) -> Iterator[tuple[Sequence[str], Sequence[str], Sequence[str]]]:
        """In order: lines of both sides, or lines of the first and those of the second in their place."""
        for kind, a, a_end, b, b_end in SequenceMatcher(None, self.before, self.after, False).get_opcodes():
            before, after = self.before[a:a_end], self.after[b:b_end]
            yield (before, (), ()) if kind == "equal" else ((), before, after)


def _coloured(sign: str, line: str, colour: str) -> str:
    """A line of HTML. Where styles are taken away, its line feed is what ends it."""
    return f'<span style="{LINE.format(colour)}">{sign}{line}\n</span>'


def _marked(before: str, after: str) -> tuple[list[str], list[str]]:
    """Both pieces of code as lines of HTML, with the words marked that only one of them has."""
    sides = WORDS.findall(before), WORDS.findall(after)
    matcher = SequenceMatcher(NOT_A_WORD.match, *sides, autojunk=False)
    if matcher.ratio() < ALIKE:
        return escape(before).splitlines(), escape(after).splitlines()
    removed, added = "", ""
    for kind, a, a_end, b, b_end in matcher.get_opcodes():
        old, new = "".join(sides[0][a:a_end]), "".join(sides[1][b:b_end])
        removed += escape(old) if kind == "equal" else _bold(old, RED)
        added += escape(new) if kind == "equal" else _bold(new, GREEN)
    return removed.splitlines(), added.splitlines()


def _bold(code: str, colour: str) -> str:
    """HTML in which what a line of code holds, but not the space around it, is marked."""
    opened = f'<b style="{WORD.format(colour)}">'
    return re.sub(r"\S(?:.*\S)?", lambda found: f"{opened}{escape(found[0])}</b>", code)


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
