"""Lesson 10: the exercise."""

from labkit.learn.exercise import Exercise
from labkit.learn.lesson_10.clock import StepWork, simulate


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
