"""An exercise: the reader writes a function, which is compared with the solution on random calls."""

import copy
import dis
import random
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType
from typing import Any

from labkit.learn.answers import difference, one_line
from labkit.learn.verdict import Verdict

NUM_DRAWN = 100  # random calls of an exercise
MOST_LINES = 1_000_000  # of an attempt, in one call; the longest right one runs a few thousand
# Where code lies that is not the attempt's: lines of it are not counted.
INSTALLED = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<frozen ")
NO_RETURN = " (A function without `return` gives None.)"


class Unattempted(Exception):
    """Raised by an exercise's empty function."""


class BrokenContract(Exception):
    """Raised by an exercise's `play`. The sentence says what the attempt did that it must not do."""


class EndlessLoop(BaseException):
    """Raised inside an attempt that has run MOST_LINES lines. No `except Exception` stops it."""


def not_attempted() -> None:
    """What the body of an exercise holds until the reader writes one."""
    raise Unattempted


@dataclass(frozen=True)
class Exercise:
    """A task: an attempt is compared with the solution on NUM_DRAWN random calls, the same ones each time.

    solution: the package's own way to do it. draw: the arguments of a random call, by name; they are passed
        in this order, so the attempt's parameters may have other names.
    contract: what the function must do, told with the shortest call whose answer is wrong.
    play: calls the attempt (its first argument) on something made for this call, and returns what can be
        seen afterwards, by name. It may raise BrokenContract. None: the answer is looked at, and the
        arguments must be as they were.
    """

    solution: Callable
    draw: Callable[[random.Random], dict[str, Any]]
    contract: str
    play: Callable[..., dict[str, Any]] | None = None

    @property
    def name(self) -> str:
        """The solution's, which verdicts begin with."""
        return self.solution.__name__

    def grade(self, attempt: Callable) -> Verdict:
        """Not attempted, right, or the shortest call that goes wrong and how. It never raises."""
        try:
            for arguments in self.calls():
                if wrong := self._wrong(attempt, arguments):
                    given = ", ".join(f"{name}={one_line(repr(value))}" for name, value in arguments.items())
                    return Verdict(f"{self.name}: with {given}: {wrong} {self.contract}".rstrip())
        except Unattempted:
            return Verdict(f"{self.name}: not attempted yet.")
        return Verdict(f"{self.name}: right, in all {NUM_DRAWN} random calls.")

    def calls(self) -> list[dict[str, Any]]:
        """The arguments of the random calls, short ones first: they are easier to think through."""
        rng = random.Random(0)
        return sorted((self.draw(rng) for _ in range(NUM_DRAWN)), key=lambda arguments: len(repr(arguments)))

    def _wrong(self, attempt: Callable, arguments: dict[str, Any]) -> str:
        """What is wrong with the attempt's answer, in a sentence; empty if nothing is."""
        expected = self._call(self.solution, arguments)
        try:
            with limited_lines(MOST_LINES):
                answer = self._call(attempt, arguments)
            return self._compared(answer, expected)
        except (Unattempted, KeyboardInterrupt):
            raise
        except BrokenContract as broken:
            return str(broken)
        except EndlessLoop:
            return f"has run {MOST_LINES:,} lines without an end. Is there a loop that never stops?"
        except BaseException as error:  # SystemExit, too: a cell must not end the kernel
            return f"raised {type(error).__name__}: {one_line(str(error))}."

    def _call(self, attempt: Callable, arguments: dict[str, Any]) -> Any:
        if self.play:
            return self.play(attempt, **copy.deepcopy(arguments))
        return _called(attempt, **arguments)

    def _compared(self, answer: Any, expected: Any) -> str:
        if not self.play:
            wrong = difference(answer, expected)
            return wrong and f"it gave {wrong}{NO_RETURN if answer is None else ''}"
        for name, value in expected.items():
            if wrong := difference(answer[name], value):
                return f"{name}: {wrong}"
        return ""


def answer_of(attempt: Callable, /, **arguments: Any) -> Any:
    """What the attempt answers to these arguments, for an exercise's `play`. Raises BrokenContract if it
    changes one of them, or answers None."""
    answer = _called(attempt, **arguments)
    if answer is None:
        raise BrokenContract(f"it gave None.{NO_RETURN}")
    return answer


def _called(attempt: Callable, /, **arguments: Any) -> Any:
    given = copy.deepcopy(arguments)
    answer = attempt(*given.values())
    check_unchanged(given, arguments)
    return answer


def check_unchanged(given: dict[str, Any], before: dict[str, Any]) -> None:
    """Raise BrokenContract, naming the argument, if a call has changed one of those it was given."""
    for name, value in before.items():
        if difference(given[name], value):
            now = one_line(repr(given[name]))
            raise BrokenContract(
                f"it changed its argument {name} to {now}. Leave what you are given as it is."
            )


@cache
def jumps_to_itself(code: CodeType) -> bool:
    """Whether an instruction jumps to itself, as Python 3.11 makes of `while True: pass` in one line. No line
    begins again there, so its steps are counted."""
    return any(i.opcode in dis.hasjrel and i.argval == i.offset for i in dis.get_instructions(code))


@contextmanager
def limited_lines(most_lines: int, uncounted: tuple[str, ...] = INSTALLED) -> Iterator[None]:
    """Raise EndlessLoop inside the block after so many lines of Python: no clock decides.

    uncounted: what the names of files begin with whose lines do not count; by default those of installed
    packages, for the first call of one may import millions of them. Where a debugger traces already, it keeps
    its place, and there is no limit.
    """
    if sys.gettrace() is not None:
        yield
        return
    left = most_lines

    def enter(frame: FrameType, event: str, argument: object) -> Callable | None:
        if frame.f_code.co_filename.startswith(uncounted):
            return None
        frame.f_trace_opcodes = jumps_to_itself(frame.f_code)
        return count

    def count(frame: FrameType, event: str, argument: object) -> Callable:
        nonlocal left
        left -= event in ("line", "opcode")
        if left < 0:
            raise EndlessLoop
        return count

    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(None)
