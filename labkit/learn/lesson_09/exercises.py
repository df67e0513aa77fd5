"""Lesson 09: the exercises on joining partial softmaxes and on folding a LayerNorm."""

import math
from random import Random

from labkit.learn.exercise import Case, Exercise

Part = tuple[float, float, list[float]]  # of a softmax: the largest score, total and acc

# --- exercise 1 ----------------------------------------------------------------------------------------


def join(so_far: Part, part: Part) -> Part:
    """The partial softmax of two shares of tokens together."""
    largest = max(so_far[0], part[0])
    if largest == -math.inf:
        return so_far
    one, other = (math.exp(share[0] - largest) for share in (so_far, part))
    acc = [one * x + other * y for x, y in zip(so_far[2], part[2], strict=True)]
    return largest, one * so_far[1] + other * part[1], acc


EMPTY: Part = (-math.inf, 0.0, [0.0, 0.0])
E = math.exp(-1)


def draw_two_parts(rng: Random) -> dict[str, object]:
    """Draw arguments of `join`: shares with no token and with several, with scores near each other, or so far
    apart that one of them counts for nothing."""
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
    name="join",
    cases=(
        Case(
            {"so_far": (3.0, 1.0, [4.0, 0.0]), "part": (3.0, 2.0, [1.0, 4.0])},
            (3.0, 3.0, [5.0, 4.0]),
            "Both count from the same score, so totals and accs just add up. Nothing is divided yet: that is "
            "for the end. Return a tuple of three: the largest score, total and acc, a list.",
        ),
        Case(
            {"so_far": (1.0, 1.0, [8.0, 0.0]), "part": (2.0, 1.5, [0.0, 8.0])},
            (2.0, E + 1.5, [8 * E, 8.0]),
            "A larger score has come. What was there counts from 1, and must count from 2: exp(1 - 2) times "
            "its acc, and times its total, too.",
        ),
        Case(
            {"so_far": (2.0, 1.5, [0.0, 8.0]), "part": (1.0, 1.0, [8.0, 0.0])},
            (2.0, E + 1.5, [8 * E, 8.0]),
            "The largest score is in what was there, so it is the new part that must be brought to it.",
        ),
        Case(
            {"so_far": (5000.0, 1.0, [2.0, 0.0]), "part": (4999.0, 2.0, [0.0, 2.0])},
            (5000.0, 1 + 2 * E, [2.0, 2 * E]),
            "exp(5000) does not fit into a number. Take the largest away before, never after.",
        ),
        Case(
            {"so_far": (-5001.0, 1.0, [2.0, 4.0]), "part": (-5000.0, 1.0, [2.0, 0.0])},
            (-5000.0, 1 + E, [2 + 2 * E, 4 * E]),
            "Scores may all lie far below 0. Count from the largest of them, not from 0.",
        ),
        Case(
            {"so_far": (2.0, 2.0, [2.0, 6.0]), "part": EMPTY},
            (2.0, 2.0, [2.0, 6.0]),
            "A part without tokens changes nothing: its weight is exp(-inf - 2), which is 0.",
        ),
        Case(
            {"so_far": EMPTY, "part": (-3.0, 2.0, [2.0, 6.0])},
            (-3.0, 2.0, [2.0, 6.0]),
            "Before the first piece there is nothing: the first part is what there is, also if its scores "
            "are below 0.",
        ),
        Case(
            {"so_far": EMPTY, "part": EMPTY},
            EMPTY,
            "Two parts without tokens are one without tokens. (-inf less -inf is no number.)",
        ),
        Case(
            {"so_far": (0.0, 1.0, [8.0, 8.0]), "part": (2000.0, 2.0, [2.0, 4.0])},
            (2000.0, 2.0, [2.0, 4.0]),
            "Parts can lie so far apart that one counts for nothing: exp(0 - 2000) is 0, and that is right. "
            "The other way round, exp(2000 - 0) is more than a number holds.",
        ),
        Case(
            {"so_far": (0.25, 1.5, [-1.0]), "part": (0.25, 1.75, [0.125])},
            (0.25, 3.25, [-0.875]),
            "Values are any numbers: below 0, too. A head may have any size, and nothing is rounded.",
        ),
    ),
    solution=join,
    draw=draw_two_parts,
    drawn_hint="Bring both, acc and total, to the larger of the two largest scores, and add up. Return that "
    "score with them.",
)

# --- exercise 2 ----------------------------------------------------------------------------------------


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
    """Draw arguments of `fold`: a LayerNorm and the linear layer behind it, of any shape, with a bias or
    without."""
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
    name="fold",
    cases=(
        Case(
            {
                "norm_weight": [1, 1],
                "norm_bias": [0, 0],
                "weight": [[1, 2], [3, 4]],
                "bias": [5, 6],
                "unit": 0.5,
            },
            ([[1, 2], [3, 4]], [3, 7], [5, 6]),
            "A LayerNorm with weights of 1 and biases of 0 leaves weight and bias as they are. Return a "
            "tuple: the folded weight, one sum for each output (over its inputs), and the folded bias.",
        ),
        Case(
            {
                "norm_weight": [2, 3],
                "norm_bias": [0, 0],
                "weight": [[1, 10], [100, 1000]],
                "bias": [0, 0],
                "unit": 0.5,
            },
            ([[2, 30], [200, 3000]], [32, 3200], [0, 0]),
            "The norm's weight belongs to the inputs: column k of the linear layer's weight is multiplied by "
            "norm_weight[k]. The sums are those of the folded weight, because that is what the product sees.",
        ),
        Case(
            {
                "norm_weight": [1, 1],
                "norm_bias": [1, 2],
                "weight": [[1, 10], [100, 1000]],
                "bias": [5, 6],
                "unit": 0.5,
            },
            ([[1, 10], [100, 1000]], [11, 1100], [26, 2106]),
            "The norm's bias goes through the linear layer as any input does: weight @ norm_bias is added to "
            "the linear layer's own bias.",
        ),
        Case(
            {"norm_weight": [2, 3], "norm_bias": [1, 2], "weight": [[1, 10]], "bias": [7], "unit": 0.5},
            ([[2, 30]], [32], [28]),
            "The norm adds its bias after it has multiplied by its weight, so the bias goes through the "
            "weight as it was, not through the folded one.",
        ),
        Case(
            {
                "norm_weight": [2, 1, 1],
                "norm_bias": [0, 0, 3],
                "weight": [[1, 2, 3], [4, 5, 6]],
                "bias": None,
                "unit": 0.5,
            },
            ([[2, 2, 3], [8, 5, 6]], [7, 19], [9, 18]),
            "A linear layer may have no bias of its own. The folded one has one all the same: the norm's. "
            "(And a weight need not be square.)",
        ),
        Case(
            {
                "norm_weight": [-1, 0.5],
                "norm_bias": [0, 0],
                "weight": [[2, 3], [4, 8], [0, 1]],
                "bias": None,
                "unit": 0.5,
            },
            ([[-2, 1.5], [-4, 4], [0, 0.5]], [-0.5, 0, 0.5], [0, 0, 0]),
            "There is a sum and a bias for each output, also where they are 0, and numbers can be below 0.",
        ),
        Case(
            {"norm_weight": [0.5, 0.5], "norm_bias": [1, 1], "weight": [[3, 7]], "bias": [0], "unit": 1.0},
            ([[2.0, 4.0]], [6.0], [10]),
            "Weights are stored as multiples of 1 here: 1.5 becomes 2 and 3.5 becomes 4. The product sees "
            "these, so the sum is theirs, 6, and not 5, that of the weights before: else a part of the mean "
            "stays. The bias is made of the weight as it was.",
        ),
    ),
    solution=fold,
    draw=draw_layer,
    drawn_hint="Column k of the weight times norm_weight[k], rounded; the sum of each row of that; and the "
    "weight as it was, times norm_bias, added to the bias if there is one.",
)
