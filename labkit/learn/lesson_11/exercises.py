"""Lesson 11: the exercise."""

from collections.abc import Sequence
from random import Random

from labkit.learn.exercise import Exercise


def read_too_early(events: Sequence[tuple]) -> list[tuple[int, str]]:
    """The launches, by number, that read a tensor which they do not wait for, and the tensor."""
    seen: dict[str, set[int]] = {}
    maker: dict[str, int] = {}
    wrong: list[tuple[int, str]] = []
    number = 0
    for what, stream, *rest in events:
        known = seen.setdefault(stream, set())
        if what == "wait":
            known |= seen.get(rest[0], set())
            continue
        reads, writes = rest
        wrong += [(number, name) for name in reads if name in maker and maker[name] not in known]
        known.add(number)
        maker |= dict.fromkeys(writes, number)
        number += 1
    return wrong


def draw_streams(rng: Random) -> dict[str, object]:
    """Draw arguments of `read_too_early`: launches and waits of up to three streams."""
    streams, events, names = ["main", "side", "third"][: rng.randint(2, 3)], [], "abcd"
    for _ in range(rng.randint(2, 14)):
        stream, other = rng.sample(streams, 2)
        if rng.random() < 0.35:
            events.append(("wait", stream, other))
        else:
            reads = rng.sample(names, rng.randint(0, 2))
            events.append(("launch", stream, reads, [rng.choice(names)]))
    return {"events": events}


READ_TOO_EARLY = Exercise(
    solution=read_too_early,
    draw=draw_streams,
    contract="A launch waits for everything before it in its own stream, and for everything that its "
    "stream has waited for so far, directly or not. It reads a tensor too early if the launch "
    "that last wrote it is not among those.",
)
