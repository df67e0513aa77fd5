"""Lesson 10: the exercises."""

from collections.abc import Sequence
from random import Random

from labkit.learn.exercise import Exercise
from labkit.learn.lesson_10.clock import StepWork, simulate


def deliver(events: Sequence[tuple], eos: int) -> dict[str, list[int]]:
    """The tokens that each request gets, by name. events: in order; eos: the token id that ends a text."""
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
    """Draw events of an engine that admits, launches, reads steps later, cancels and preempts."""
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
    solution=deliver,
    draw=draw_events,
    contract="A token is handed out if its request is still in the session that it had at the launch and "
    "has not ended in it. Reads come in the order of the launches.",
)


def handed_out_at(launch: int, gpu: int, accept: int, num_steps: int, ahead: int) -> list[int]:
    """When each step's tokens are handed out, by a host that launches `ahead` steps before it reads one."""
    schedule = simulate(StepWork(launch, gpu, accept), num_steps, ahead)
    return [int(busy.end) for busy in schedule if busy.work == "accept"]


HANDED_OUT_AT = Exercise(
    solution=handed_out_at,
    draw=lambda rng: {
        **{name: rng.choice((1, 2, 5, 30)) for name in ("launch", "gpu", "accept")},
        "num_steps": rng.randint(0, 7),
        "ahead": rng.randint(0, 3),
    },
    contract="The host launches what is due, waits until the oldest unread step has ended, and accepts its"
    " tokens. The GPU begins a step when it was launched and the step before it has ended.",
)
