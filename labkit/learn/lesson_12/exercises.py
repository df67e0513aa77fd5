"""Lesson 12: the exercise."""

from labkit.learn.exercise import Exercise


def in_order(bits: int) -> int:
    """A whole number for a float16 of these bits, in the order of the numbers: 0 for both zeros, 1 for the
    smallest above them, -1 for the largest below."""
    size = bits & 0x7FFF
    return -size if bits & 0x8000 else size


IN_ORDER = Exercise(
    solution=in_order,
    draw=lambda rng: {"bits": rng.choice([rng.randrange(2**16), rng.randrange(2**15, 2**16), 0x8000])},
    contract="The lowest 15 bits count a value's distance from 0 in steps of one float; the highest bit is"
    " its sign.",
)
