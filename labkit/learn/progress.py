"""How far the reader has come: right steps and predictions, in a file beside the parts that they keep."""

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from labkit import paths
from labkit.errors import OptionError
from labkit.json_file import read_json
from labkit.results.typed import read_as


@dataclass(frozen=True)
class Guess:
    """A prediction that was scored: the last guess, and what was measured then. Factors are stored as gains,
    in %."""

    guess: float
    actual: float


@dataclass(frozen=True)
class LessonProgress:
    """What the reader has done in a lesson: the build steps whose gate a part of theirs passed, by the names
    in `steps.STEPS`, and their guesses by question."""

    gates: tuple[str, ...] = ()
    guesses: Mapping[str, Guess] = field(default_factory=dict)


def progress_file() -> Path:
    """Where progress is stored, in the folder of the reader's own parts."""
    return paths.MINE / "progress.json"


def progress() -> dict[str, LessonProgress]:
    """What was done, by the number of each lesson in which something was. Raises OptionError for a file that
    cannot be read."""
    path = progress_file()
    if not path.exists():
        return {}
    try:
        return read_as(dict[str, LessonProgress], read_json(path), "it")
    except ValueError as error:
        raise OptionError(
            f"{path.name} in {path.parent.name}/ cannot be read ({error}); delete it to start anew"
        ) from error


def note_gate(lesson: str, step: str) -> None:
    """A part of the reader's passed the gate of a lesson's step."""
    _note(lesson, lambda done: replace(done, gates=tuple(dict.fromkeys([*done.gates, step]))))


def note_guess(lesson: str, question: str, guess: float, actual: float) -> None:
    """A prediction was scored; the same question's earlier guess is replaced."""
    scored = {question: Guess(guess, actual)}
    _note(lesson, lambda done: replace(done, guesses={**done.guesses, **scored}))


def _note(lesson: str, change: Callable[[LessonProgress], LessonProgress]) -> None:
    """Store a lesson's change. Where that is not possible, warn and go on: no cell fails for it."""
    path = progress_file()
    try:
        lessons = progress()
        lessons[lesson] = change(lessons.get(lesson, LessonProgress()))
        path.parent.mkdir(exist_ok=True)
        written = path.with_suffix(".new")
        text = json.dumps({number: asdict(done) for number, done in sorted(lessons.items())}, indent=1)
        written.write_text(text + "\n", encoding="utf-8")
        written.replace(path)
    except (OSError, OptionError) as error:
        warnings.warn(f"your progress is not stored: {error}", stacklevel=3)
