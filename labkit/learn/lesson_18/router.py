"""Lesson 18: a router's order, held against its contracts and tried on simulated replicas."""

import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Report, proven
from labkit.learn.steps import noted
from labkit.serve.affinity import (
    PIECE,
    Order,
    PrefixAffinity,
    Seen,
    by_turns,
    load_then_prefix,
    num_seen,
    prefix_keys,
    remember,
)

NUM_DRAWS = 1000
NUM_REQUESTS, GAP = 2000, 7.0  # of a load, and milliseconds between two arrivals, on average
PREFILL, DECODE = 1.0, 40.0  # milliseconds: of a piece of a prompt, of all of an answer
ROOM = 400  # pieces that a replica's prefix cache holds


def prefix_alone(load: int, most: int, seen: int, turn: int) -> tuple[int, ...]:
    """The longest prefix goes first, however many requests wait there."""
    return -seen, load, turn


# --- contracts ----------------------------------------------------------------------------------------------


class Replica(NamedTuple):
    """What an order knows of a replica, for one request."""

    load: int
    seen: int
    turn: int

    @property
    def words(self) -> str:
        return f"a replica with load {self.load}, seen {self.seen} and turn {self.turn}"


# Of two replicas, when the first must come first: by a sentence.
CONTRACTS: dict[str, Callable[[Replica, Replica, int], bool]] = {
    "load comes first": lambda a, b, most: a.load <= most < b.load,
    "of those with few enough requests, the longest prefix wins": lambda a, b, most: (
        max(a.load, b.load) <= most and a.seen > b.seen
    ),
    "then the smaller load wins, and whoever was chosen longer ago": lambda a, b, most: (
        load_then_prefix(a.load, most, a.seen, a.turn) < load_then_prefix(b.load, most, b.seen, b.turn)
    ),
}


def pairs() -> Iterator[tuple[Replica, Replica, int]]:
    """Random replicas, and the load up to which one has few enough requests."""
    draw = random.Random(18)
    for _ in range(NUM_DRAWS):
        most = draw.randint(2, 9)
        a, b = (Replica(draw.randint(0, 2 * most), draw.randint(0, 3), draw.randint(0, 9)) for _ in range(2))
        yield from ((a, b, most), (b, a, most))


def check_order(order: Order) -> Report:
    """Whether a router's order keeps its contracts, and what it reuses on simulated replicas."""

    def trial() -> None:
        for contract, better in CONTRACTS.items():
            for a, b, most in pairs():
                first, second = (order(each.load, most, each.seen, each.turn) for each in (a, b))
                if better(a, b, most) and not first < second:
                    raise BrokenContract(
                        f"{contract}: up to {most} requests are few enough, and {a.words} comes after "
                        f"{b.words}. Their keys are {first} and {second}, and the smaller one comes first."
                    )

    report = proven("my_order", [trial], f"{NUM_DRAWS} random pairs of replicas.")
    if report.ok:
        mine, turns = (served(LOADS["16 assistants"], each)["reused"] for each in (order, by_turns))
        said = f" Of 16 assistants' prompts, it reuses {mine}, and round robin {turns}."
        report = replace(report, text=report.text + said)
    return noted(report, "18", "my_order", order)


# --- simulated replicas -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """Requests that arrive at random. Each begins with the text of one of `num_beginnings`, of `shared`
    pieces, and goes on with `own` pieces; `popular` of them all begin with the first one."""

    num_beginnings: int
    shared: int
    own: int
    popular: float = 0.0

    def requests(self) -> Iterator[tuple[float, str]]:
        """When each arrives, in milliseconds, and its text."""
        draw, now = random.Random(0), 0.0
        for number in range(NUM_REQUESTS):
            now += draw.expovariate(1 / GAP)
            which = 0 if draw.random() < self.popular else draw.randrange(self.num_beginnings)
            yield now, pieces(f"beginning {which}", self.shared) + pieces(f"request {number}", self.own)


def pieces(name: str, count: int) -> str:
    """A text of so many pieces that no other name has."""
    return "".join(f"{name}, piece {i}".ljust(PIECE) for i in range(count))


LOADS = {
    "16 assistants": Load(num_beginnings=16, shared=48, own=2),
    "one of them popular": Load(num_beginnings=16, shared=48, own=12, popular=0.7),
    "one for all": Load(num_beginnings=1, shared=48, own=12),
    "nothing shared": Load(num_beginnings=1, shared=0, own=25),
}


class SimulatedReplica:
    """Computes prompts one after another, but for what its cache has, and answers side by side."""

    def __init__(self) -> None:
        self._cache: Seen = OrderedDict()
        self._free_at = 0.0
        self._ends: list[float] = []

    def load(self, now: float) -> int:
        """Unfinished requests."""
        self._ends = [end for end in self._ends if end > now]
        return len(self._ends)

    def serve(self, now: float, text: str) -> tuple[int, float]:
        """Pieces of a prompt that were cached, and milliseconds until the first token."""
        keys = prefix_keys(text)
        cached = num_seen(self._cache, keys)
        self._free_at = max(self._free_at, now) + PREFILL * (len(keys) - cached)
        self._ends.append(self._free_at + DECODE)
        remember(self._cache, keys, ROOM)
        return cached, self._free_at - now


def served(load: Load, order: Order) -> dict[str, str]:
    """What four replicas behind a router with this order make of a load, by the titles of a table."""
    replicas = {f"replica {i}": SimulatedReplica() for i in range(4)}
    router = PrefixAffinity(order=order)
    cached, total, waits, longest = 0, 0, [], 0
    for now, text in load.requests():
        loads = {name: each.load(now) for name, each in replicas.items()}
        chosen = router.rank(text, loads)[0]
        found, wait = replicas[chosen].serve(now, text)
        cached, total, longest = cached + found, total + len(text) // PIECE, max(longest, loads[chosen] + 1)
        waits.append(wait)
    return {
        "reused": f"{100 * cached / total:.0f} %",
        "first token, median (ms)": f"{median(waits):,.0f}",
        "p99 (ms)": f"{sorted(waits)[int(0.99 * len(waits))]:,.0f}",
        "most requests on a replica": f"{longest}",
    }
