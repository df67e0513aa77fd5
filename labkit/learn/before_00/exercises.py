"""The exercises of the page before lesson 00: when kernels begin, and how long a step takes."""

import random
from typing import Any

from labkit.learn.before_00.chain import Chain, kernel_begins, schedule
from labkit.learn.exercise import Case, Exercise

# --- step 1 ------------------------------------------------------------------------------------------------


def draw_launches(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `kernel_begins`: up to 8 launches with pauses between them, and a kernel's time."""
    issued, host = [], 0
    for _ in range(rng.randint(0, 8)):
        host += rng.randint(1, 6) + rng.choice((0, 0, 0, 20))
        issued.append(host)
    return {"issued": issued, "gpu_us": rng.randint(1, 8)}


KERNEL_BEGINS = Exercise(
    name="kernel_begins",
    cases=(
        Case({"issued": [5], "gpu_us": 2}, [5], "Nothing runs before it has been launched."),
        Case({"issued": [5, 10, 15], "gpu_us": 2}, [5, 10, 15], "The GPU is free each time: it waits."),
        Case(
            {"issued": [1, 2, 3], "gpu_us": 5},
            [1, 6, 11],
            "Kernels of one stream run one after another: kernel 1 begins when kernel 0 has ended, at 1 + 5.",
        ),
        Case(
            {"issued": [1, 2, 30, 31], "gpu_us": 5},
            [1, 6, 30, 35],
            "After a pause of the host the GPU is free again: kernel 2 waits for its launch, kernel 3 for "
            "kernel 2.",
        ),
        Case({"issued": [2, 4, 6], "gpu_us": 2}, [2, 4, 6], "A kernel may begin when the other one ends."),
        Case({"issued": [], "gpu_us": 5}, [], "No launch, no kernel."),
    ),
    solution=kernel_begins,
    draw=draw_launches,
    drawn_hint="A kernel begins at the later of two times: its launch, and the end of the kernel before it.",
)

# --- step 2 ------------------------------------------------------------------------------------------------


def step_time(kernels: int, host_us: float, gpu_us: float, read_back: bool) -> float:
    """Microseconds of a step, once it runs evenly: between the ends of the fifth step and the sixth."""
    ends = [
        busy.end for busy in schedule(Chain(kernels, host_us, gpu_us, read_back), 6) if busy.work == "gpu"
    ]
    return ends[-1] - ends[-1 - kernels]


def draw_chain(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `step_time`."""
    return {
        "kernels": rng.randint(1, 12),
        "host_us": rng.randint(1, 9),
        "gpu_us": rng.randint(1, 9),
        "read_back": rng.random() < 0.5,
    }


def chain(kernels: int, host_us: int, gpu_us: int, read_back: bool, expected: int, hint: str) -> Case:
    """A case of `step_time`."""
    arguments = {"kernels": kernels, "host_us": host_us, "gpu_us": gpu_us, "read_back": read_back}
    return Case(arguments, expected, hint)


STEP_TIME = Exercise(
    name="step_time",
    cases=(
        chain(10, 5, 2, False, 50, "The host is the slower one: ten launches of 5 µs."),
        chain(10, 2, 5, False, 50, "The GPU is the slower one: ten kernels of 5 µs."),
        chain(10, 3, 3, False, 30, "Both keep the same pace: ten times 3 µs."),
        chain(
            1,
            5,
            2,
            True,
            7,
            "One kernel and a read-back: nothing overlaps. First the launch, then the kernel.",
        ),
        chain(
            10,
            5,
            2,
            True,
            52,
            "The host launches ten times, and then waits for the last kernel, which takes 2 µs.",
        ),
        chain(
            10,
            2,
            5,
            True,
            52,
            "The GPU begins when the first launch is done, at 2 µs. Then it runs ten kernels of 5 µs.",
        ),
    ),
    solution=step_time,
    draw=draw_chain,
    drawn_hint="With a read-back a step is one launch, one kernel, and the slower of the two for each of the "
    "others.",
)
