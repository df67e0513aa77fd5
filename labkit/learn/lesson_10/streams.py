"""Lesson 10: the orders in which a GPU may run what two streams hold."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Access(NamedTuple):
    """A write or a read of one slot of a block on the GPU, and the request that it is for."""

    who: str
    verb: str  # "writes" or "reads"


def orders(streams: Sequence[Sequence[Access]]) -> Iterator[tuple[Access, ...]]:
    """Every order in which a GPU may run the accesses: within a stream as launched, between streams any."""
    if not any(streams):
        yield ()
    for i, stream in enumerate(streams):
        if stream:
            rest = [*streams[:i], stream[1:], *streams[i + 1 :]]
            yield from ((stream[0], *others) for others in orders(rest))


def what_is_read(streams: Sequence[Sequence[Access]]) -> Counter[str]:
    """In how many of the possible orders the one read of the slot finds each request's number."""
    found: Counter[str] = Counter()
    for order in orders(streams):
        slot = "nobody"
        for access in order:
            if access.verb == "reads":
                found[f"{access.who} reads {slot}'s number"] += 1
            else:
                slot = access.who
    return found
