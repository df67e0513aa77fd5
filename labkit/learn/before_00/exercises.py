"""The exercises of the page before lesson 00: when kernels begin, and how long a step takes."""

import random
from typing import Any

from labkit.learn.before_00.chain import Chain, kernel_begins
from labkit.learn.exercise import Exercise


def draw_launches(rng: random.Random) -> dict[str, Any]:
    """Draw arguments of `kernel_begins`: up to 8 launches with pauses between them, and a kernel's time."""
    issued, host = [], 0
    for _ in range(rng.randint(0, 8)):
        host += rng.randint(1, 6) + rng.choice((0, 0, 0, 20))
        issued.append(host)
    return {"issued": issued, "gpu_us": rng.randint(1, 8)}


KERNEL_BEGINS = Exercise(
    solution=kernel_begins,
    draw=draw_launches,
    contract="A kernel begins when it has been launched and the kernel before it has ended, whichever is "
    "later.",
)


def step_time(kernels: int, host_us: float, gpu_us: float, read_back: bool) -> float:
    """Microseconds of a step of the `Chain` with these numbers, once it runs evenly."""
    return float(Chain(kernels, host_us, gpu_us, read_back).step_us)


STEP_TIME = Exercise(
    solution=step_time,
    draw=lambda rng: {
        "kernels": rng.randint(1, 12),
        "host_us": rng.randint(1, 9),
        "gpu_us": rng.randint(1, 9),
        "read_back": rng.random() < 0.5,
    },
    contract="Without a read-back a step takes as long as its slower side, host or GPU. With one, nothing "
    "overlaps at its ends: a step is one launch, one kernel, and for each of the other kernels "
    "the slower of the two.",
)
