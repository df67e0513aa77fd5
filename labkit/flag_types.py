"""Numbers on a command line: the types of flags that take one in a range."""

import argparse
from collections.abc import Callable
from math import nan

from labkit.checks import shown


def whole_number(at_least: int, at_most: int) -> Callable[[str], int]:
    """The type of a flag that takes a whole number in this range, both ends included."""

    def convert(text: str) -> int:
        if at_least <= (value := as_int(text)) <= at_most:
            return int(value)
        said = f"{shown(text)} is not a whole number of {at_least} or more"
        raise argparse.ArgumentTypeError(f"{said}, {at_most:,} at most")

    return convert


def as_int(text: str) -> float:
    """The whole number in a text; NaN, which is in no range, for other texts and for 30 digits or more."""
    try:
        return int(text) if len(text) < 30 else nan
    except ValueError:
        return nan


def real_number(at_least: float, at_most: float) -> Callable[[str], float]:
    """The type of a flag that takes a number in this range, both ends included."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = nan
        if at_least <= value <= at_most:
            return value
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a number from {at_least:,} to {at_most:,}")

    return convert
