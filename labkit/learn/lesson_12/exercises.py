"""Lesson 12: the exercises."""

from collections.abc import Sequence

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


def kept_ids(weights: Sequence[int], top_k: int, dropped: int) -> list[int]:
    """The ids that top-k and then top-p keep, in order.

    weights: whole numbers in place of probabilities. top_k: 0 for off. dropped: in place of 1 - p, the
    part of 100 that may be dropped at most; 0 for off.
    """
    cut = sorted(weights)[-top_k] if 0 < top_k <= len(weights) else min(weights)
    left = [i for i, weight in enumerate(weights) if weight >= cut]
    mass = sum(weights[i] for i in left)
    ascending = sorted(left, key=lambda i: (weights[i], i))
    so_far = 0
    for place, i in enumerate(ascending):
        so_far += weights[i]
        if dropped == 0 or 100 * so_far > dropped * mass:
            return sorted(ascending[place:])
    return ascending[-1:]


KEPT_IDS = Exercise(
    solution=kept_ids,
    draw=lambda rng: {
        "weights": [rng.randint(1, rng.choice([3, 9, 30])) for _ in range(rng.randint(1, 12))],  # many tie
        "top_k": rng.choice([0, 1, 2, 3, 5, 20]),
        "dropped": rng.choice([0, 5, 10, 20, 50, 90]),
    },
    contract="First the k-th largest weight is a cut, and ties with it stay. Then tokens go, the smallest "
    "first and of equal ones the lower id first, as long as those that have gone add up to no "
    "more than `dropped` of 100.",
)
