"""Write a number down before you see it."""

import math
from dataclasses import dataclass

from labkit.checks import require_kind, shown
from labkit.learn.progress import note_guess
from labkit.learn.verdict import Verdict


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

        Right means within a factor of 2: this is about orders of magnitude. Where there is no factor,
        because a number is 0 or below, right means within a tenth of the larger size.
        """
        measured = as_number(actual)
        if not math.isfinite(measured):
            return Verdict(f"{self.question}: {shown(actual)} is no number, so nothing can be compared.")
        return Verdict(f"{self.question}: {measured:,.4g} {self.unit}. {self._compared(measured)}")

    def _compared(self, actual: float) -> str:
        if self.guess is None:
            return "You made no prediction; put a number where it says guess=None and run again."
        guess = as_number(self.guess)
        if not math.isfinite(guess):
            return f"Your guess, {shown(self.guess)}, is no number; put one where it says guess=."
        if self.lesson is not None:
            note_guess(self.lesson, self.question, guess, actual)
        return f"You said {guess:,.4g}: {verdict_of(guess, actual)}."


def as_number(value: object) -> float:
    """A value as float; NaN for what is no number."""
    try:
        return float(value)
    except Exception:  # whatever the value's own code raises
        return math.nan


def verdict_of(guess: float, actual: float) -> str:
    """How near a guess came to the actual number, in words: right, within a factor of 2, or how far off."""
    factor = factor_off(guess, actual)
    if guess > 0 and actual > 0:
        return "within a factor of 2" if factor <= 2 else f"off by a factor of {factor:,.3g}"
    return "right" if factor == 1 else f"off by {abs(guess - actual):,.4g}"


def factor_off(guess: float, actual: float) -> float:
    """By which factor a guess is off, 1 or more. Where there is none, because a number is 0 or below, 1 for a
    guess within a tenth of the larger size, and infinity for any other."""
    if guess > 0 and actual > 0:
        return max(guess / actual, actual / guess)
    return 1.0 if abs(guess - actual) <= 0.1 * max(abs(guess), abs(actual)) else math.inf
