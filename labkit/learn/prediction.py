"""Write a number down before you see it."""

import math
from dataclasses import dataclass

from labkit.checks import require_kind, shown
from labkit.learn.progress import note_guess
from labkit.learn.verdict import Verdict

FACTORS = ("times", "times as fast", "x")  # units of a factor, of which 1 is no gain
SMALL = 2  # below it a factor is scored by its gain
RIGHT = 1.05  # by so much a right guess may be off


@dataclass
class Prediction:
    """A question about a number, and the reader's guess; None is a question left open.

    lesson: the number of the lesson that asks, in whose progress the score is noted; None notes nothing.
    """

    question: str
    unit: str
    guess: float | None = None
    lesson: str | None = None

    def __post_init__(self) -> None:
        """Raises OptionError for a question or a unit that is no text; any guess is a guess."""
        require_kind("question", self.question, str, "text")
        require_kind("unit", self.unit, str, "text")

    def score(self, actual: float) -> Verdict:
        """How near the guess came, in a sentence. It never raises.

        Right means within 5 %, and near within a factor of 2: this is about orders of magnitude. Of an answer
        that is itself a small factor, by its unit, the gains are compared: they are 4 % for 1.04 times.
        """
        measured = as_number(actual)
        if not math.isfinite(measured):
            return Verdict(f"{self.question}: {shown(actual)} is no number, so nothing can be compared.")
        return Verdict(f"{self.question}: {told(measured)} {self.unit}. {self._compared(measured)}")

    def _compared(self, actual: float) -> str:
        if self.guess is None:
            return "You made no prediction; put a number where it says guess=None and run again."
        guess = as_number(self.guess)
        if not math.isfinite(guess):
            return f"Your guess, {shown(self.guess)}, is no number; put one where it says guess=."
        said, scored = f"You said {told(guess)}", (guess, actual)
        if self.unit in FACTORS and actual < SMALL:
            scored = (100 * (guess - 1), 100 * (actual - 1))
            said += ", a gain of {:,.4g} % where it was {:,.4g} %".format(*scored)
        if self.lesson is not None:
            note_guess(self.lesson, self.question, *scored)
        return f"{said}: {verdict_of(*scored)}."


def as_number(value: object) -> float:
    """A value as float; NaN for what is no number."""
    try:
        return float(value)
    except Exception:  # whatever the value's own code raises
        return math.nan


def told(number: float) -> str:
    """A number with four digits, and a large one with all that stand before the point."""
    return f"{number:,.0f}" if 10_000 <= abs(number) < math.inf else f"{number:,.4g}"


def verdict_of(guess: float, actual: float) -> str:
    """How near a guess came to the actual number, in words."""
    factor = factor_off(guess, actual)
    if f"{guess:.4g}" == f"{actual:.4g}":
        return "exactly right"
    if factor <= RIGHT:
        return "right, within 5 %"
    if factor <= 2:
        return "within a factor of 2"
    return f"off by a factor of {factor:,.3g}" if factor < math.inf else f"off by {abs(guess - actual):,.4g}"


def factor_off(guess: float, actual: float) -> float:
    """By which factor a guess is off, 1 or more; infinity where there is none, because one of the numbers is
    0, or below it and the other above."""
    if guess == actual:
        return 1.0
    return max(guess / actual, actual / guess) if guess * actual > 0 else math.inf
