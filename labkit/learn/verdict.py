"""What a reader is told about their work, so that it can be read where it is printed."""

import textwrap

WIDTH = 100  # characters of a printed line; JupyterLab breaks longer ones inside a word


class Verdict(str):
    """A verdict in words, on one line: what tests and programs look into. Printed, its lines are wrapped."""

    def __str__(self) -> str:
        return wrapped(self[:])


def wrapped(text: str) -> str:
    """The text in lines of at most WIDTH characters, all but the first set in. No word is broken."""
    whole_words = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(text, WIDTH, subsequent_indent="    ", **whole_words)
