"""Lesson 09's exercise: joining partial softmaxes."""

import math
from random import Random

from labkit.learn.exercise import Exercise

Part = tuple[float, float, list[float]]  # of a softmax: the largest score, total and acc


def join(so_far: Part, part: Part) -> Part:
    """The partial softmax of two shares of tokens together."""
    largest = max(so_far[0], part[0])
    if largest == -math.inf:
        return so_far
    one, other = (math.exp(share[0] - largest) for share in (so_far, part))
    acc = [one * x + other * y for x, y in zip(so_far[2], part[2], strict=True)]
    return largest, one * so_far[1] + other * part[1], acc


def draw_two_parts(rng: Random) -> dict[str, object]:
    """Draw shares with no token or several, whose scores are near each other or far apart."""
    spread = rng.choice([0, 2, 20, 3000])
    middle = rng.choice([0, -2000, 2000])
    head_size = rng.randint(1, 3)
    num_tokens = [rng.choice([0, 1, 2, 5]) for _ in range(2)]
    so_far, part = (_part(rng, num, head_size, middle, spread) for num in num_tokens)
    return {"so_far": so_far, "part": part}


def _part(rng: Random, num_tokens: int, head_size: int, middle: int, spread: int) -> Part:
    # Quarters, which float32 holds, too: an answer by tensors is as right.
    scores = [middle + rng.randint(-4 * spread, 4 * spread) / 4 for _ in range(num_tokens)]
    largest = max(scores, default=-math.inf)
    weights = [math.exp(score - largest) for score in scores]
    acc = [sum((weight * rng.randint(-4, 4) for weight in weights), 0.0) for _ in range(head_size)]
    return largest, sum(weights, 0.0), acc


JOIN = Exercise(
    solution=join,
    draw=draw_two_parts,
    contract="Bring both parts, acc and total, to the larger of the two largest scores: multiply by "
    "exp(its largest - the larger), which is 0 for a part without tokens. Then add them up, and "
    "return that score with them.",
)
