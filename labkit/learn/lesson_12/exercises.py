"""Lesson 12: the exercises."""

from collections.abc import Sequence
from random import Random

from labkit.learn.exercise import Case, Exercise

# --- numbers of 16 bits, in order --------------------------------------------------------------------------


def in_order(bits: int) -> int:
    """A whole number for a float16 of these bits, in the order of the numbers: 0 for both zeros, 1 for the
    smallest above them, -1 for the largest below."""
    size = bits & 0x7FFF
    return -size if bits & 0x8000 else size


def draw_bits(rng: Random) -> dict[str, int]:
    """Draw an argument of `in_order`."""
    return {"bits": rng.choice([rng.randrange(2**16), rng.randrange(2**15, 2**16), 0x8000])}


IN_ORDER = Exercise(
    "in_order",
    (
        Case({"bits": 0x3C00}, 15360, "0x3C00 is 1.0. Bits of numbers above 0 are in their order already."),
        Case({"bits": 0x0000}, 0, "0x0000 is 0.0."),
        Case({"bits": 0x0001}, 1, "0x0001 is the smallest number above 0."),
        Case(
            {"bits": 0xBC00}, -15360, "0xBC00 is -1.0. Its highest bit is the sign, and what is left grows."
        ),
        Case({"bits": 0xC000}, -16384, "0xC000 is -2.0, which lies below -1.0 although its bits are more."),
        Case({"bits": 0x8000}, 0, "0x8000 is -0.0, which equals 0.0: a tie has one key."),
        Case({"bits": 0x8001}, -1, "0x8001 is the largest number below 0: there is no gap at 0."),
        Case({"bits": 0xFC00}, -31744, "0xFC00 is minus infinity, which is below all numbers."),
        Case({"bits": 0x7C00}, 31744, "0x7C00 is infinity, which is above all numbers."),
    ),
    in_order,
    draw_bits,
    "The lowest 15 bits are the number's distance from 0, counted in numbers; the highest is its sign.",
)

# --- which tokens are left ---------------------------------------------------------------------------------


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


def draw_weights(rng: Random) -> dict[str, object]:
    """Draw arguments of `kept_ids`: few different weights, so that many tie."""
    weights = [rng.randint(1, rng.choice([3, 9, 30])) for _ in range(rng.randint(1, 12))]
    return {
        "weights": weights,
        "top_k": rng.choice([0, 1, 2, 3, 5, 20]),
        "dropped": rng.choice([0, 5, 10, 20, 50, 90]),
    }


def asked(weights: Sequence[int], top_k: int = 0, dropped: int = 0) -> dict[str, object]:
    """Arguments of `kept_ids`."""
    return {"weights": list(weights), "top_k": top_k, "dropped": dropped}


KEPT_IDS = Exercise(
    "kept_ids",
    (
        Case(asked([5, 1, 3]), [0, 1, 2], "Both are off: all are kept, in the order of their ids."),
        Case(asked([5, 1, 3], top_k=2), [0, 2], "The two largest."),
        Case(asked([2, 5, 2, 2], top_k=2), [0, 1, 2, 3], "The second largest is 2, and all that tie stay."),
        Case(asked([5, 1, 3], top_k=9), [0, 1, 2], "More than there are is off."),
        Case(
            asked([50, 15, 30, 5], dropped=40),
            [0, 2],
            "From the smallest: 5 and 15 are 20 of 100, which may go. With 30 it would be 50, more than 40: "
            "that one crosses, and is kept. Ids are in order.",
        ),
        Case(
            asked([25, 25, 25, 25], dropped=50),
            [2, 3],
            "Exactly 50 of 100 may go. Of those that tie, lower ids go first.",
        ),
        Case(asked([90, 10], dropped=95), [0], "The last one is kept: with it the sum is all."),
        Case(
            asked([40, 30, 20, 10], top_k=2, dropped=45),
            [0],
            "Top-p is of what top-k has left: 30 of 70 is under 45 of 100.",
        ),
        Case(
            asked([40, 30, 20, 10], top_k=2, dropped=40),
            [0, 1],
            "Of what top-k has left, and not of all: 30 of 70 is more than 40 of 100.",
        ),
        Case(
            asked([10, 30, 30, 30], top_k=1, dropped=34),
            [2, 3],
            "Three tie with the largest, 90 together: one of them is 33.3 of 100 and may go.",
        ),
        Case(asked([7], top_k=1, dropped=90), [0], "One token is always left."),
    ),
    kept_ids,
    draw_weights,
    "First the k-th largest is a cut, and ties stay. Then, of what is left, tokens go from the smallest on, "
    "of equal ones the lower id first, while all that have gone are no more than `dropped` of 100.",
)
