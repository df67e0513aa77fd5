"""Lesson 11: the exercises."""

from collections.abc import Sequence
from random import Random

from labkit.learn.exercise import Exercise
from labkit.learn.lesson_11.simulated_gpu import Task, run

# --- two lanes and one memory ------------------------------------------------------------------------------


def lanes_end(lanes: Sequence[Sequence[tuple[int, int]]]) -> list[int]:
    """When the last kernel of each lane ends. A kernel is (waits, bytes), in microseconds."""
    tasks: list[Task] = []
    for name, lane in enumerate(lanes):
        for i, (waits, moves) in enumerate(lane):
            tasks.append(Task(str(name), str(i), waits, moves, (len(tasks) - 1,) if i else ()))
    ends = {span.stream: span.end for span in sorted(run(tasks), key=lambda span: span.end)}
    return [int(ends.get(str(name), 0)) for name in range(len(lanes))]


LANES_END = Exercise(
    solution=lanes_end,
    draw=lambda rng: {
        "lanes": [
            [(rng.randint(0, 6), rng.randint(1, 9)) for _ in range(rng.randint(0, 5))]
            for _ in range(rng.randint(1, 3))
        ]
    },
    contract="A kernel begins when the one before it in its lane has ended, and waits. Then it asks for "
    "the memory, which serves one kernel at a time: the one that asked first, and of two that ask"
    " at once the one of the earlier lane.",
)

# --- what is read too early --------------------------------------------------------------------------------


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
            events.append(("launch", stream, reads, rng.sample(names, rng.randint(1, 1))))
    return {"events": events}


READ_TOO_EARLY = Exercise(
    solution=read_too_early,
    draw=draw_streams,
    contract="A launch waits for everything before it in its own stream, and for everything that its "
    "stream has waited for so far, directly or not. It reads a tensor too early if the launch "
    "that last wrote it is not among those.",
)
