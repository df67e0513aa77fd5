"""What a reader is told about their work: printed in lines that can be read, and drawn in a notebook."""

import re
import textwrap
from html import escape
from typing import NamedTuple

WIDTH = 100  # characters of a printed line; JupyterLab breaks longer ones inside a word
LABEL = 12  # characters of a row's label, and the space behind it
WHOLE_WORDS = {"break_long_words": False, "break_on_hyphens": False}

# By mark, the colour of a verdict: a theme's own where there is one, which can be read on its background.
COLOURS = {
    "✓": "var(--jp-success-color1, #2e7d32)",
    "✗": "var(--jp-error-color1, #c62828)",
    "○": "var(--jp-warn-color1, #b26a00)",
}


class Verdict(str):
    """A verdict in words, on one line: what tests and programs look into. Printed, its lines are wrapped."""

    def __str__(self) -> str:
        return wrapped(self[:])


def wrapped(text: str) -> str:
    """The text in lines of at most WIDTH characters, all but the first set in. No word is broken."""
    return textwrap.fill(text, WIDTH, subsequent_indent="    ", **WHOLE_WORDS)


class Drawn(NamedTuple):
    """A verdict as a heading and rows: a mark of COLOURS, what was looked at, how it ended, and what there is
    to say, each under its label. Printed and drawn, the words are the same."""

    mark: str
    title: str
    ending: str
    rows: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        head = f"{self.mark}  {self.title}"
        space = max(3, WIDTH - len(head) - len(self.ending))
        return "\n".join([f"{head}{' ' * space}{self.ending}", *(row_of(*row) for row in self.rows)])

    @property
    def html(self) -> str:
        """The same for a notebook, on a light background or a dark one."""
        colour = COLOURS[self.mark]
        rows = "".join(
            f'<span style="opacity:.7">{label}</span><span>{with_code(text)}</span>'
            for label, text in self.rows
        )
        return (
            f'<div style="border-left:4px solid {colour};padding:2px 12px;margin:4px 0;max-width:60em">'
            f'<div style="display:flex;justify-content:space-between;gap:2em;font-weight:600;color:{colour}">'
            f"<span>{self.mark} {escape(self.title)}</span><span>{escape(self.ending)}</span></div>"
            f'<div style="display:grid;grid-template-columns:6em 1fr;gap:2px 1em">{rows}</div></div>'
        )


def row_of(label: str, text: str) -> str:
    """A row in lines of at most WIDTH characters, its text below itself."""
    begin, indent = f"   {label:<{LABEL}}", " " * (3 + LABEL)
    return textwrap.fill(text, WIDTH, initial_indent=begin, subsequent_indent=indent, **WHOLE_WORDS)


def with_code(text: str) -> str:
    """HTML of a text in which code stands between backticks."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def sentences(text: str) -> tuple[str, str]:
    """The first sentence, and the rest."""
    first, _, rest = re.sub(r"(?<=[\w)\]'`]\.) (?=[A-Z`(])", "\n", text, count=1).partition("\n")
    return first, rest
