"""Lesson 11: two launches of a split-K product at once, in one workspace or two, in every possible order."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

NUM_PARTS = 2  # of the one number that each launch adds up
PARTS = {"first half": (1, 2), "second half": (10, 20)}  # what the programs of each launch add


@dataclass
class Workspace:
    """Where the programs of a launch leave their parts, and count who has arrived; 0 between launches."""

    parts: list[int] = field(default_factory=lambda: [0] * NUM_PARTS)
    arrived: int = 0


class Outcome(NamedTuple):
    """What two launches made; None where no program took itself for the last one."""

    first: int | None
    second: int | None


RIGHT = (sum(PARTS["first half"]), sum(PARTS["second half"]))


def programs(name: str, workspace: Workspace, made: dict[str, int]) -> list[list[Callable[[], None]]]:
    """The programs of a launch, each as its two actions: leave a part; count, and if it is the last to
    arrive, add up all parts and set the counter back."""

    def leave(number: int) -> None:
        workspace.parts[number] = PARTS[name][number]

    def count() -> None:
        workspace.arrived += 1
        if workspace.arrived == NUM_PARTS:
            made[name] = sum(workspace.parts)
            workspace.arrived = 0

    return [[lambda n=n: leave(n), count] for n in range(NUM_PARTS)]


def outcomes(num_workspaces: int) -> Counter[Outcome]:
    """What both launches make at once, in how many of the orders in which a GPU may run their programs.

    num_workspaces: 1, which both share, or 2.
    """
    found: Counter[Outcome] = Counter()
    for order in orders([2] * (2 * NUM_PARTS)):
        workspaces = [Workspace() for _ in range(num_workspaces)]
        made: dict[str, int] = {}
        pairs = zip(PARTS, (workspaces[0], workspaces[-1]), strict=True)
        running = [iter(actions) for name, space in pairs for actions in programs(name, space, made)]
        for program in order:
            next(running[program])()
        found[Outcome(*map(made.get, PARTS))] += 1
    return found


def orders(left: Sequence[int]) -> Iterator[list[int]]:
    """Every order of the programs' actions; left: how many each has."""
    if not any(left):
        yield []
    for program, actions in enumerate(left):
        if actions:
            rest = [n - (i == program) for i, n in enumerate(left)]
            yield from ([program, *order] for order in orders(rest))


def told(num_workspaces: int) -> str:
    """How many orders are right, and the wrong outcome that most of the others have."""
    found = outcomes(num_workspaces)
    total = sum(found.values())
    right = sum(times for outcome, times in found.items() if outcome == RIGHT)
    text = f"{right:,} of {total:,} orders right"
    wrong = [(times, outcome) for outcome, times in found.items() if outcome != RIGHT]
    if not wrong:
        return text
    times, outcome = max(wrong, key=lambda pair: pair[0])
    return f"{text}; {times:,} make {outcome.first} and {outcome.second}, not {RIGHT[0]} and {RIGHT[1]}"
