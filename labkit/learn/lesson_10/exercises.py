"""Lesson 10: the exercises."""

from collections.abc import Sequence
from random import Random

from labkit.learn.exercise import Case, Exercise
from labkit.learn.lesson_10.clock import StepWork, handed_out

# --- whose token is it? ------------------------------------------------------------------------------------


def deliver(events: Sequence[tuple], eos: int) -> dict[str, list[int]]:
    """The tokens that each request gets, by name. events: of an engine, in order; eos: the token id that ends
    a text."""
    sessions: dict[str, int | None] = {}
    launched: list[list[tuple[str, int | None]]] = []
    reached: dict[str, list[int]] = {}
    for what, *rest in events:
        if what == "joins":
            name, sessions[name] = rest[0], rest[1]
            reached.setdefault(name, [])
        elif what == "leaves":
            sessions[rest[0]] = None
        elif what == "launch":
            launched.append([(name, sessions[name]) for name in rest[0]])
        else:
            for (name, session), token_id in zip(launched.pop(0), rest[0], strict=True):
                if sessions[name] != session or session is None:
                    continue
                reached[name].append(token_id)
                if token_id == eos:
                    sessions[name] = None
    return reached


def draw_events(rng: Random) -> dict[str, object]:
    """Draw arguments of `deliver`: the events of an engine that admits, launches, reads up to three steps
    behind, cancels and preempts."""
    eos = rng.choice([0, 9])
    sessions = rng.sample(range(1, 100), 40)  # in no order: they are names, too
    events, running, preempted, launched = [], {}, [], []
    names = list("ABCDE"[: rng.randint(1, 5)])
    for _ in range(rng.randint(8, 48)):
        what = rng.choice(["joins", "joins", "leaves", "launch", "launch", "launch", "read", "read"])
        if what == "joins" and (names or preempted):
            name = (preempted or names).pop(0)
            running[name] = sessions.pop()
            events.append(("joins", name, running[name]))
        elif what == "leaves" and running:
            name = rng.choice(list(running))
            del running[name]
            preempted += [name] if rng.random() < 0.7 else []
            events.append(("leaves", name))
        elif what == "launch" and running and len(launched) < 3:
            flight = rng.sample(list(running), rng.randint(1, len(running)))
            launched.append([(name, running[name]) for name in flight])
            events.append(("launch", flight))
        elif what == "read" and launched:
            flight = launched.pop(0)
            tokens = [eos if rng.random() < 0.2 else rng.randrange(20) for _ in flight]
            events.append(("read", tokens))
            for (name, session), token in zip(flight, tokens, strict=True):
                if token == eos and running.get(name) == session:
                    del running[name]  # its text has ended
    return {"events": events, "eos": eos}


DELIVER = Exercise(
    "deliver",
    (
        Case(
            {
                "events": [
                    ("joins", "A", 1),
                    ("joins", "B", 2),
                    ("launch", ["A", "B"]),
                    ("read", [31, 32]),
                    ("launch", ["B"]),
                    ("read", [33]),
                ],
                "eos": 0,
            },
            {"A": [31], "B": [32, 33]},
            "A read brings one token for each request of the launch, in the launch's order.",
        ),
        Case(
            {
                "events": [
                    ("joins", "A", 1),
                    ("joins", "B", 2),
                    ("launch", ["A", "B"]),
                    ("launch", ["B"]),
                    ("read", [31, 32]),
                    ("read", [33]),
                ],
                "eos": 0,
            },
            {"A": [31], "B": [32, 33]},
            "Two steps are on their way, and a read is of the oldest that has not been read.",
        ),
        Case(
            {
                "events": [
                    ("joins", "A", 1),
                    ("joins", "B", 2),
                    ("launch", ["A", "B"]),
                    ("launch", ["A", "B"]),
                    ("read", [0, 32]),
                    ("launch", ["B"]),
                    ("read", [33, 34]),
                    ("read", [35]),
                ],
                "eos": 0,
            },
            {"A": [0], "B": [32, 34, 35]},
            "The token that ends a text is handed out. The one behind it was on its way, and nobody gets it.",
        ),
        Case(
            {
                "events": [
                    ("joins", "A", 1),
                    ("joins", "B", 2),
                    ("launch", ["A", "B"]),
                    ("leaves", "A"),
                    ("launch", ["B"]),
                    ("read", [31, 32]),
                    ("read", [33]),
                ],
                "eos": 0,
            },
            {"A": [], "B": [32, 33]},
            "A was cancelled while its token was on its way: it has no session any more.",
        ),
        Case(
            {
                "events": [
                    ("joins", "A", 1),
                    ("launch", ["A"]),
                    ("leaves", "A"),
                    ("joins", "A", 2),
                    ("launch", ["A"]),
                    ("read", [31]),
                    ("read", [32]),
                ],
                "eos": 0,
            },
            {"A": [32]},
            "A was preempted and has come back in another session, whose prefill made that token once more. "
            "What the old session launched is not for the new one.",
        ),
        Case(
            {
                "events": [
                    ("joins", "A", 1),
                    ("launch", ["A"]),
                    ("joins", "B", 2),
                    ("launch", ["B", "A"]),
                    ("read", [31]),
                    ("read", [41, 32]),
                ],
                "eos": 0,
            },
            {"A": [31, 32], "B": [41]},
            "B joined after the first launch, so its first token comes with the second.",
        ),
        Case(
            {
                "events": [
                    ("joins", "A", 1),
                    ("launch", ["A"]),
                    ("read", [31]),
                    ("leaves", "A"),
                    ("joins", "A", 2),
                    ("launch", ["A"]),
                    ("read", [32]),
                ],
                "eos": 0,
            },
            {"A": [31, 32]},
            "What was handed out stays handed out: a request that comes back goes on behind it.",
        ),
        Case(
            {
                "events": [
                    ("joins", "A", 1),
                    ("joins", "B", 2),
                    ("launch", ["B", "A"]),
                    ("launch", ["B", "A"]),
                    ("read", [0, 50256]),
                    ("read", [7, 8]),
                ],
                "eos": 50256,
            },
            {"A": [50256], "B": [0, 7]},
            "Which token ends a text is an argument: here it is 50256, and 0 is a token as any other.",
        ),
        Case(
            {
                "events": [
                    ("joins", "A", 1),
                    ("launch", ["A"]),
                    ("leaves", "A"),
                    ("joins", "A", 2),
                    ("launch", ["A"]),
                    ("read", [0]),
                    ("read", [32]),
                ],
                "eos": 0,
            },
            {"A": [32]},
            "An end that nobody gets ends nobody: it was for the session that A no longer has.",
        ),
        Case(
            {"events": [("joins", "A", 1), ("leaves", "A"), ("joins", "B", 2), ("launch", ["B"])], "eos": 0},
            {"A": [], "B": []},
            "Whoever joined is in the answer, also without a token; and a launch that is never read brings "
            "none.",
        ),
    ),
    deliver,
    draw_events,
    "A token is handed out if its request is still in the session that it had at the launch, and has not "
    "ended in it.",
)

# --- when are tokens handed out? ---------------------------------------------------------------------------


def handed_out_at(launch: int, gpu: int, accept: int, num_steps: int, ahead: int) -> list[int]:
    """When each step's tokens are handed out, by a host that launches `ahead` steps before it reads one."""
    return handed_out(StepWork(launch, gpu, accept), num_steps, ahead)


def draw_times(rng: Random) -> dict[str, int]:
    """Draw arguments of `handed_out_at`."""
    launch, gpu, accept = (rng.choice((1, 2, 5, 30)) for _ in range(3))
    return {
        "launch": launch,
        "gpu": gpu,
        "accept": accept,
        "num_steps": rng.randint(0, 7),
        "ahead": rng.randint(0, 3),
    }


def times(launch: int, gpu: int, accept: int, num_steps: int, ahead: int) -> dict[str, int]:
    """Arguments of `handed_out_at`."""
    return {"launch": launch, "gpu": gpu, "accept": accept, "num_steps": num_steps, "ahead": ahead}


HANDED_OUT_AT = Exercise(
    "handed_out_at",
    (
        Case(times(2, 10, 3, 1, 0), [15], "One step: launch, GPU, accept, one after another."),
        Case(times(2, 10, 3, 3, 0), [15, 30, 45], "Read at once, nothing overlaps: each step takes the sum."),
        Case(
            times(2, 10, 3, 3, 1),
            [15, 25, 35],
            "One behind: step 1 is launched at 4, before step 0 is read. The GPU goes on at 12.",
        ),
        Case(
            times(5, 2, 5, 3, 1),
            [15, 25, 30],
            "A slow host: the GPU ends step 0 at 7, but the host launches step 1 until 10, and reads only "
            "then. Behind the last step nothing is launched.",
        ),
        Case(
            times(1, 10, 1, 4, 2),
            [12, 22, 32, 42],
            "Two ahead: before each read, so many are launched that two are behind the one that is read. "
            "The GPU still runs one step after another.",
        ),
        Case(times(1, 10, 1, 2, 3), [12, 22], "No more steps are launched than there are."),
        Case(times(1, 10, 1, 0, 1), [], "No step, no token."),
    ),
    handed_out_at,
    draw_times,
    "The host launches what is due, waits until the oldest step that was not read has ended, and accepts its "
    "tokens. The GPU begins a step when it was launched and the step before it has ended.",
)
