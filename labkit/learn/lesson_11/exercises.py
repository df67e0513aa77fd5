"""Lesson 11: the exercises."""

from collections.abc import Sequence
from random import Random

from labkit.learn.exercise import Case, Exercise
from labkit.learn.lesson_11.played_gpu import Task, run

# --- two lanes and one memory ------------------------------------------------------------------------------


def lanes_end(lanes: Sequence[Sequence[tuple[int, int]]]) -> list[int]:
    """When the last kernel of each lane ends. A kernel is (waits, bytes), in microseconds."""
    tasks: list[Task] = []
    for name, lane in enumerate(lanes):
        for i, (waits, moves) in enumerate(lane):
            tasks.append(Task(str(name), str(i), waits, moves, (len(tasks) - 1,) if i else ()))
    ends = {span.stream: span.end for span in sorted(run(tasks), key=lambda span: span.end)}
    return [int(ends.get(str(name), 0)) for name in range(len(lanes))]


def draw_kernels(rng: Random) -> dict[str, object]:
    """Draw arguments of `lanes_end`: up to three lanes."""
    lanes = [
        [(rng.randint(0, 6), rng.randint(1, 9)) for _ in range(rng.randint(0, 5))]
        for _ in range(rng.randint(1, 3))
    ]
    return {"lanes": lanes}


LANES_END = Exercise(
    "lanes_end",
    (
        Case({"lanes": [[(2, 5)]]}, [7], "A kernel waits, and then moves its bytes."),
        Case(
            {"lanes": [[(2, 5), (1, 3)]]}, [11], "In a lane each kernel begins when the one before has ended."
        ),
        Case(
            {"lanes": [[(2, 5)], [(3, 4)]]},
            [7, 11],
            "Both wait at once, but the memory serves one kernel at a time: the second has to wait until 7.",
        ),
        Case(
            {"lanes": [[(4, 6), (4, 6)], [(4, 6), (4, 6)]]},
            [22, 28],
            "Lane 0 waits from 10 to 14 while lane 1 moves bytes, until 16. Then it is turn by turn.",
        ),
        Case(
            {"lanes": [[(5, 2)], [(1, 2)]]},
            [7, 3],
            "Whoever asks first is served first, whichever lane it is in.",
        ),
        Case(
            {"lanes": [[(3, 2)], [(3, 4)]]},
            [5, 9],
            "Of two that ask at the same moment the lane that comes first in the list is served first.",
        ),
        Case(
            {"lanes": [[(1, 9)], [(1, 1), (1, 1)]]},
            [10, 13],
            "A kernel whose lane is done waiting stands in line behind one that asked before.",
        ),
        Case({"lanes": [[], [(1, 1)]]}, [0, 2], "A lane without kernels ends at 0."),
    ),
    lanes_end,
    draw_kernels,
    "A kernel begins when the one before it in its lane has ended, and waits. Then it asks the memory, which "
    "serves one kernel at a time, the one that asked first; of equals the earlier lane.",
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
    "read_too_early",
    (
        Case(
            {"events": [("launch", "main", [], ["a"]), ("launch", "main", ["a"], ["b"])]},
            [],
            "In one stream each launch waits for all before it.",
        ),
        Case(
            {"events": [("launch", "main", [], ["a"]), ("launch", "side", ["a"], ["b"])]},
            [(1, "a")],
            "The side stream does not wait for the main stream by itself.",
        ),
        Case(
            {
                "events": [
                    ("launch", "main", [], ["a"]),
                    ("wait", "side", "main"),
                    ("launch", "side", ["a"], ["b"]),
                    ("launch", "main", ["b"], ["c"]),
                ]
            },
            [(2, "b")],
            "The fork is there, the join is not. Waits have no number.",
        ),
        Case(
            {
                "events": [
                    ("wait", "side", "main"),
                    ("launch", "main", [], ["a"]),
                    ("launch", "side", ["a"], ["b"]),
                ]
            },
            [(1, "a")],
            "A wait is for what was launched before it, and for nothing later.",
        ),
        Case(
            {
                "events": [
                    ("launch", "main", [], ["a"]),
                    ("wait", "main", "side"),
                    ("launch", "side", ["a"], ["b"]),
                ]
            },
            [(1, "a")],
            "A wait has a direction: here main waits for side.",
        ),
        Case(
            {
                "events": [
                    ("launch", "main", [], ["a"]),
                    ("wait", "side", "main"),
                    ("wait", "third", "side"),
                    ("launch", "third", ["a"], ["b"]),
                ]
            },
            [],
            "Who waits for the side stream waits for what that has waited for.",
        ),
        Case(
            {
                "events": [
                    ("launch", "main", [], ["a"]),
                    ("wait", "side", "main"),
                    ("launch", "main", [], ["a"]),
                    ("launch", "side", ["a"], ["b"]),
                ]
            },
            [(2, "a")],
            "The tensor was written once more: what counts is the last launch that writes it.",
        ),
        Case(
            {"events": [("launch", "side", ["w", "x"], ["a"]), ("launch", "main", ["a", "w"], ["b"])]},
            [(1, "a")],
            "What no launch has written was there from the start, such as weights.",
        ),
    ),
    read_too_early,
    draw_streams,
    "A launch waits for all before it in its stream, and for all that its stream has waited for until then, "
    "directly or not. It reads too early what another launch was the last to write.",
)
