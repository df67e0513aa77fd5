"""Write a number down before you see it."""

from dataclasses import dataclass


@dataclass
class Prediction:
    """A question about a number, and the reader's guess; None is a question left open."""

    question: str
    unit: str
    guess: float | None = None

    def score(self, actual: float) -> str:
        """How near the guess came. Right means within a factor of 2: this is about orders of magnitude."""
        measured = f"{self.question}: {actual:,.4g} {self.unit}."
        if self.guess is None:
            return f"{measured} You made no prediction; put a number where it says guess=None and run again."
        if self.guess <= 0 or actual <= 0:
            raise ValueError(
                f"predictions are scored as ratios, so {self.guess!r} and {actual!r} must be positive"
            )
        ratio = max(self.guess / actual, actual / self.guess)
        verdict = "within a factor of 2" if ratio <= 2 else f"off by a factor of {ratio:,.3g}"
        return f"{measured} You said {self.guess:,.4g}: {verdict}."
