"""Write a number down before you see it."""

import math
from dataclasses import dataclass

from labkit.checks import shown


@dataclass
class Prediction:
    """A question about a number, and the reader's guess; None is a question left open."""

    question: str
    unit: str
    guess: float | None = None

    def score(self, actual: float) -> str:
        """How near the guess came, in a sentence. It never raises.

        Right means within a factor of 2: this is about orders of magnitude. Where there is no factor,
        because a number is 0 or below, right means within a tenth of the larger size.
        """
        measured = f"{self.question}: {actual:,.4g} {self.unit}."
        if self.guess is None:
            return f"{measured} You made no prediction; put a number where it says guess=None and run again."
        try:
            guess = float(self.guess)
        except Exception:  # whatever the guess's own code raises
            guess = math.nan
        if not math.isfinite(guess):
            return f"{measured} Your guess, {shown(self.guess)}, is no number; put one where it says guess=."
        return f"{measured} You said {guess:,.4g}: {verdict_of(guess, actual)}."


def verdict_of(guess: float, actual: float) -> str:
    """How near a guess came to the actual number, in words: right, within a factor of 2, or how far off."""
    if guess > 0 and actual > 0:
        ratio = max(guess / actual, actual / guess)
        return "within a factor of 2" if ratio <= 2 else f"off by a factor of {ratio:,.3g}"
    apart = abs(guess - actual)
    if apart <= 0.1 * max(abs(guess), abs(actual)):
        return "right"
    return f"off by {apart:,.4g}"
