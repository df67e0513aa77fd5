"""Lesson 09: the exercises on joining partial softmaxes and on folding a LayerNorm."""

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


def fold(
    norm_weight: list[float],
    norm_bias: list[float],
    weight: list[list[float]],
    bias: list[float] | None,
    unit: float,
) -> tuple[list[list[float]], list[float], list[float]]:
    """The folded weight, its column sums and the folded bias of a LayerNorm and the linear layer behind it:
    `fold_layer_norm` of lists. A weight is stored as a multiple of `unit`."""
    folded = [[round(w * g / unit) * unit for w, g in zip(row, norm_weight, strict=True)] for row in weight]
    folded_bias = [sum(w * b for w, b in zip(row, norm_bias, strict=True)) for row in weight]
    if bias is not None:
        folded_bias = [f + b for f, b in zip(folded_bias, bias, strict=True)]
    return folded, [sum(row) for row in folded], folded_bias


def draw_layer(rng: Random) -> dict[str, object]:
    """Draw a LayerNorm and the linear layer behind it, of any shape, with a bias or without."""
    num_outputs, num_inputs = rng.randint(1, 4), rng.randint(1, 4)

    def numbers(size: int) -> list[float]:
        return [rng.randint(-8, 8) / 4 for _ in range(size)]

    return {
        "norm_weight": numbers(num_inputs),
        "norm_bias": numbers(num_inputs),
        "weight": [numbers(num_inputs) for _ in range(num_outputs)],
        "bias": rng.choice([None, numbers(num_outputs)]),
        "unit": rng.choice([1 / 1024, 0.25, 1.0]),
    }


FOLD = Exercise(
    solution=fold,
    draw=draw_layer,
    contract="Column k of the weight is multiplied by norm_weight[k] and rounded to multiples of `unit`; "
    "the sums are those of its rows. The original weight times norm_bias is added to the bias, if"
    " there is one.",
)
