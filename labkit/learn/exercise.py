"""An exercise: the reader writes a function, a grader says what is wrong with it."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class Unattempted(Exception):
    """Raised by an exercise's empty function."""


def not_attempted() -> None:
    """What the body of an exercise holds until the reader writes one."""
    raise Unattempted


@dataclass(frozen=True)
class Case:
    """One call of the reader's function, and what to say if it answers otherwise."""

    arguments: dict[str, Any]
    expected: Any
    hint: str  # the part of the contract that this case is about


@dataclass(frozen=True)
class Exercise:
    """A task with its cases, the simplest first. `solution` is the package's own way to do it."""

    name: str
    cases: tuple[Case, ...]
    solution: Callable

    def grade(self, attempt: Callable) -> str:
        """One line: not attempted, right, or the first case that fails and why."""
        for number, case in enumerate(self.cases, start=1):
            shown = ", ".join(f"{name}={value!r}" for name, value in case.arguments.items())
            try:
                answer = attempt(**copy.deepcopy(case.arguments))  # theirs to change
            except Unattempted:
                return f"{self.name}: not attempted yet."
            except Exception as error:
                raised = f"raised {type(error).__name__}: {error}"
                return f"{self.name}: {attempt.__name__}({shown}) {raised}. {case.hint}"
            if answer != case.expected:
                return (
                    f"{self.name}: {attempt.__name__}({shown}) gave {answer!r}, expected {case.expected!r}. "
                    f"{case.hint} ({number - 1} of {len(self.cases)} cases passed)"
                )
        return f"{self.name}: right, all {len(self.cases)} cases."
