"""A parser of command lines whose errors are one line: what is wrong, and what may have been meant."""

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that refuses with one line in place of all its usage."""

    def parse_known_args(self, *args: Any, **kwargs: Any) -> tuple[Any, list[str]]:
        """What argparse makes of the arguments; a command itself refuses flags that it does not have, for it
        alone knows those that it has."""
        known, unknown = super().parse_known_args(*args, **kwargs)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        """End with status 2 and one line."""
        self.exit(2, f"{self.prog}: error: {message}{self._meant(message)}\n")

    def _meant(self, message: str) -> str:
        if found := re.match(r"unrecognized arguments: (--[\w-]+)", message):
            return did_you_mean(found[1], list(self._option_string_actions)) or "; --help lists the flags"
        if found := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            return did_you_mean(found[1], re.findall(r"[\w-]+", found[2]))
        return ""


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """ "; did you mean --rung?", or "" where nothing known is like the word."""
    close = difflib.get_close_matches(word, known, 1, cutoff=0.75)
    return f"; did you mean {close[0]}?" if close else ""
