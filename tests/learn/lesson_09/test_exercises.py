"""The graders of lesson 09: wrong answers are refused in the contract's words, right ones are right."""

import math
import random

import numpy as np
import pytest
import torch

from labkit import kernels
from labkit.learn import not_attempted
from labkit.learn.lesson_09.exercises import FOLD, JOIN, draw_layer, draw_two_parts


@pytest.mark.parametrize("exercise", [JOIN, FOLD], ids=lambda exercise: exercise.name)
def test_the_solution_is_right_and_an_empty_cell_is_not_attempted(exercise):
    right = f"{exercise.name}: right, all {len(exercise.cases)} cases."
    assert exercise.grade(exercise.solution) == exercise.grade(exercise.solution) == right
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."
    assert len({case.hint for case in exercise.cases}) == len(exercise.cases)


# --- join ------------------------------------------------------------------------------------------------


def joined(so_far, part, top, one=None, other=None):
    """The parts together, counted from `top`; one and other: the weights, if they are others."""
    one = math.exp(so_far[0] - top) if one is None else one
    other = math.exp(part[0] - top) if other is None else other
    acc = [one * x + other * y for x, y in zip(so_far[2], part[2], strict=True)]
    return top, one * so_far[1] + other * part[1], acc


def top_of(so_far, part):
    return max(so_far[0], part[0])


def either(so_far, part):
    """The one that has tokens, if not both have."""
    return part if so_far[1] == 0 else so_far if part[1] == 0 else None


def with_numpy(so_far, part, top=None):
    largest, totals, accs = (np.array(each) for each in zip(so_far, part, strict=True))
    top = largest.max() if top is None else top
    with np.errstate(over="ignore", invalid="ignore"):
        weights = np.nan_to_num(np.exp(largest - top), posinf=np.inf)
        return top, weights @ totals, weights @ accs


def changes_its_part(so_far, part):
    largest, total, acc = JOIN.solution(so_far, part)
    so_far[2][:] = acc
    return largest, total, so_far[2]


WRONG_JOINS = {
    "the new part alone": (lambda so_far, part: part, "totals and accs just add up"),
    "what was there": (lambda so_far, part: so_far, "totals and accs just add up"),
    "divides": (
        lambda a, b: (lambda m, t, acc: (m, t, [x / t if t else x for x in acc]))(*JOIN.solution(a, b)),
        "Nothing is divided yet",
    ),
    "divides, and no more": (
        lambda a, b: [x / (JOIN.solution(a, b)[1] or 1) for x in JOIN.solution(a, b)[2]],
        "Return a tuple of three",
    ),
    "two of three": (lambda a, b: JOIN.solution(a, b)[1:], "Return a tuple of three"),
    "another order": (lambda a, b: JOIN.solution(a, b)[::-1], "Return a tuple of three"),
    "just adds up": (lambda a, b: joined(a, b, top_of(a, b), 1.0, 1.0), "A larger score has come"),
    "rescales acc alone": (
        lambda a, b: (top_of(a, b), a[1] + b[1], JOIN.solution(a, b)[2]),
        "and times its total, too",
    ),
    "rescales total alone": (
        lambda a, b: (*JOIN.solution(a, b)[:2], [x + y for x, y in zip(a[2], b[2], strict=True)]),
        "A larger score has come",
    ),
    "rescales what was there alone": (
        lambda a, b: joined(a, b, top_of(a, b), other=1.0),
        "it is the new part that must be brought to it",
    ),
    "rescales the new part alone": (
        lambda a, b: joined(a, b, top_of(a, b), one=1.0),
        "What was there counts from 1",
    ),
    "from the new part's": (lambda a, b: joined(a, b, b[0]), "it is the new part"),
    "from the first one's": (lambda a, b: joined(a, b, a[0]), "A larger score has come"),
    "from the smaller": (lambda a, b: joined(a, b, min(a[0], b[0])), "A larger score has come"),
    "the other way round": (
        lambda a, b: joined(a, b, top_of(a, b), math.exp(top_of(a, b) - a[0]), math.exp(top_of(a, b) - b[0])),
        "A larger score has come",
    ),
    "in base 2": (
        lambda a, b: joined(a, b, top_of(a, b), 2.0 ** (a[0] - top_of(a, b)), 2.0 ** (b[0] - top_of(a, b))),
        "A larger score has come",
    ),
    "raises the score itself": (
        lambda a, b: joined(a, b, top_of(a, b), *(math.exp(s[0]) / math.exp(top_of(a, b)) for s in (a, b))),
        "raised OverflowError",
    ),
    "from 0 at least": (
        lambda a, b: either(a, b) or joined(a, b, max(0.0, top_of(a, b))),
        "Count from the largest of them, not from 0",
    ),
    "no part without tokens": (
        lambda a, b: joined(a, b, top_of(a, b)),
        "Two parts without tokens are one without tokens",
    ),
    "not a number": (
        lambda a, b: JOIN.solution(a, b) if top_of(a, b) > -math.inf else (math.nan, 0.0, [0.0, 0.0]),
        "is no number",
    ),
    "zero instead of -inf": (
        lambda a, b: JOIN.solution(a, b) if top_of(a, b) > -math.inf else (0.0, 0.0, [0.0, 0.0]),
        "Two parts without tokens",
    ),
    "none where they are far apart": (
        lambda a, b: a if abs(a[0] - b[0]) > 700 and either(a, b) is None else JOIN.solution(a, b),
        "exp(0 - 2000) is 0, and that is right",
    ),
    "rounds": (
        lambda a, b: (
            (lambda m, t, acc: (round(m), round(t, 1), acc))(*JOIN.solution(a, b))
            if top_of(a, b) > -math.inf
            else JOIN.solution(a, b)
        ),
        "A larger score has come",
    ),
    "two columns": (
        lambda a, b: (*JOIN.solution(a, b)[:2], [JOIN.solution(a, b)[2][d] for d in (0, 1)]),
        "raised IndexError",
    ),
    "at least 0": (
        lambda a, b: (*JOIN.solution(a, b)[:2], [max(0.0, x) for x in JOIN.solution(a, b)[2]]),
        "below 0, too",
    ),
    "nothing": (lambda a, b: None, "A function without `return` gives None"),
    "in place": (changes_its_part, "changed its argument so_far"),
    "without end": (lambda a, b: [0 for _ in iter(lambda: 0, 1)], "Is there a loop that never stops?"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("attempt", "words"), WRONG_JOINS.values(), ids=WRONG_JOINS)
def test_a_wrong_join_is_refused_in_the_contract_s_words(attempt, words):
    assert words in JOIN.grade(lambda so_far, part: attempt(so_far, part))


def as_tensors(so_far, part):
    if top_of(so_far, part) == -math.inf:
        return so_far
    largest, totals, accs = (torch.tensor(each) for each in zip(so_far, part, strict=True))
    weights = (largest - largest.max()).exp()
    return largest.max(), weights @ totals, weights @ accs


RIGHT_JOINS = {
    "list": lambda a, b: list(JOIN.solution(a, b)),
    "tensors in float32": as_tensors,
    "arrays": lambda a, b: either(a, b) or with_numpy(a, b),
    "the one that has tokens": lambda a, b: either(a, b) or joined(a, b, top_of(a, b)),
    "in the other order": lambda a, b: JOIN.solution(b, a),
}


@pytest.mark.slow
@pytest.mark.parametrize("attempt", RIGHT_JOINS.values(), ids=RIGHT_JOINS)
def test_a_right_join_is_right_in_any_clothes(attempt):
    verdict = JOIN.grade(lambda so_far, part: attempt(so_far, part))
    assert verdict == f"join: right, all {len(JOIN.cases)} cases."


def test_random_parts_are_far_apart_and_some_are_empty():
    rng = random.Random(0)
    drawn = [draw_two_parts(rng) for _ in range(200)]
    pairs = [(d["so_far"], d["part"]) for d in drawn]
    assert sum(a[1] > 0 < b[1] and abs(a[0] - b[0]) > 1024 for a, b in pairs) > 5
    assert {(a[1] > 0, b[1] > 0) for a, b in pairs} == {(x, y) for x in (True, False) for y in (True, False)}
    assert {len(a[2]) for a, _ in pairs} == {1, 2, 3}


# --- fold ------------------------------------------------------------------------------------------------


def rounded(weight, unit):
    return [[round(w / unit) * unit for w in row] for row in weight]


def by_inputs(weight, norm_weight):
    return [[w * g for w, g in zip(row, norm_weight, strict=True)] for row in weight]


def by_outputs(weight, norm_weight):
    return [[w * g for w in row] for row, g in zip(weight, norm_weight, strict=False)]


def of_rows(weight, folded):
    return [sum(row) for row in folded]


def times(weight, vector):
    return [sum(w * x for w, x in zip(row, vector, strict=True)) for row in weight]


def added(sums, bias):
    return [a + b for a, b in zip(sums, bias or [0] * len(sums), strict=True)]


def through_the_own(weight, folded, norm_bias, bias):
    return added(times(weight, norm_bias), bias)


def folded_with(weight_of=by_inputs, sums_of=of_rows, bias_of=through_the_own):
    """The solution with one thing wrong."""

    def fold(norm_weight, norm_bias, weight, bias, unit):
        folded = rounded(weight_of(weight, norm_weight), unit)
        return folded, sums_of(weight, folded), bias_of(weight, folded, norm_bias, bias)

    return fold


def folds_in_place(norm_weight, norm_bias, weight, bias, unit):
    folded_bias = added(times(weight, norm_bias), bias)
    for row in weight:
        for k, g in enumerate(norm_weight):
            row[k] *= g
    return weight, [sum(row) for row in weight], folded_bias


def adds_to_the_bias_in_place(norm_weight, norm_bias, weight, bias, unit):
    folded = by_inputs(weight, norm_weight)
    bias = [0] * len(weight) if bias is None else bias
    for n, row in enumerate(weight):
        bias[n] += sum(w * b for w, b in zip(row, norm_bias, strict=True))
    return folded, of_rows(weight, folded), bias


def dressed(clothes):
    return lambda **layer: clothes(FOLD.solution(**layer))


NOT_SQUARE = "a weight need not be square"


def sums_before_rounding(norm_weight, norm_bias, weight, bias, unit):
    folded = by_inputs(weight, norm_weight)
    folded_bias = added(times(weight, norm_bias), bias)
    return rounded(folded, unit), [sum(row) for row in folded], folded_bias


def never_rounds(norm_weight, norm_bias, weight, bias, unit):
    folded = by_inputs(weight, norm_weight)
    return folded, [sum(row) for row in folded], added(times(weight, norm_bias), bias)


WRONG_FOLDS = {
    "sums before rounding": (sums_before_rounding, "The product sees these, so the sum is theirs"),
    "never rounds": (never_rounds, "Weights are stored as multiples of 1 here"),
    "rounds the bias, too": (
        lambda unit, **layer: (lambda f, s, b: (f, s, [round(x / unit) * unit for x in b]))(
            *FOLD.solution(unit=unit, **layer)
        ),
        "added to the bias if there is one",
    ),
    "sums columns": (
        folded_with(sums_of=lambda w, f: [sum(column) for column in zip(*f, strict=True)]),
        "one sum for each output",
    ),
    "one sum": (folded_with(sums_of=lambda w, f: sum(map(sum, f))), "one sum for each output"),
    "means": (folded_with(sums_of=lambda w, f: [sum(r) / len(r) for r in f]), "one sum for each output"),
    "sums of squares": (
        folded_with(sums_of=lambda w, f: [sum(x * x for x in r) for r in f]),
        "one sum for each output",
    ),
    "sums with the bias": (
        lambda **layer: (lambda f, s, b: (f, [x + y for x, y in zip(s, b, strict=True)], b))(
            *FOLD.solution(**layer)
        ),
        "one sum for each output",
    ),
    "sums without a sign": (
        folded_with(sums_of=lambda w, f: [sum(map(abs, r)) for r in f]),
        "numbers can be below 0",
    ),
    "sums its own weight": (
        folded_with(sums_of=lambda w, f: [sum(row) for row in w]),
        "because that is what the product sees",
    ),
    "scales outputs": (folded_with(by_outputs), "belongs to the inputs"),
    "does not scale": (folded_with(lambda w, g: w), "belongs to the inputs"),
    "divides": (
        folded_with(lambda w, g: [[x / y for x, y in zip(r, g, strict=True)] for r in w]),
        "belongs to the inputs",
    ),
    "adds": (
        folded_with(lambda w, g: [[x + y - 1 for x, y in zip(r, g, strict=True)] for r in w]),
        "belongs to the inputs",
    ),
    "transposed": (
        folded_with(lambda w, g: [list(c) for c in zip(*by_inputs(w, g), strict=True)]),
        "leaves weight and bias as they are",
    ),
    "forgets the norm's bias": (
        folded_with(bias_of=lambda w, f, nb, b: b or [0] * len(w)),
        "as any input does",
    ),
    "adds the norm's bias itself": (
        folded_with(bias_of=lambda w, f, nb, b: added(b or [0] * len(w), nb[: len(w)])),
        "as any input does",
    ),
    "forgets its own bias": (
        folded_with(bias_of=lambda w, f, nb, b: times(w, nb)),
        "leaves weight and bias as they are",
    ),
    "own bias scaled": (
        lambda norm_weight, norm_bias, weight, bias, unit: (
            by_inputs(weight, norm_weight),
            of_rows(weight, by_inputs(weight, norm_weight)),
            added(times(weight, norm_bias), [b * norm_weight[0] for b in bias or [0] * len(weight)]),
        ),
        "not through the folded one",
    ),
    "bias through the folded": (
        folded_with(bias_of=lambda w, f, nb, b: added(times(f, nb), b)),
        "not through the folded one",
    ),
    "bias by outputs": (
        folded_with(
            bias_of=lambda w, f, nb, b: added([sum(r) * x for r, x in zip(w, nb * 4, strict=False)], b)
        ),
        "as any input does",
    ),
    "subtracts": (
        folded_with(bias_of=lambda w, f, nb, b: added([-x for x in times(w, nb)], b)),
        "as any input does",
    ),
    "needs a bias": (
        folded_with(bias_of=lambda w, f, nb, b: [x + y for x, y in zip(times(w, nb), b, strict=True)]),
        "raised TypeError",
    ),
    "no bias stays none": (
        folded_with(bias_of=lambda w, f, nb, b: None if b is None else added(times(w, nb), b)),
        "A linear layer may have no bias of its own",
    ),
    "no bias stays zeros": (
        folded_with(bias_of=lambda w, f, nb, b: [0] * len(w) if b is None else added(times(w, nb), b)),
        "A linear layer may have no bias of its own",
    ),
    "no bias, and none to add": (
        folded_with(bias_of=lambda w, f, nb, b: added(times(w, nb), b) if b or any(nb) else None),
        "a bias for each output, also where they are 0",
    ),
    "two by two": (
        folded_with(lambda w, g: [[r[0] * g[0], r[1] * g[1]] for r in w]),
        NOT_SQUARE,
    ),
    "whole numbers": (
        folded_with(lambda w, g: [[int(x) for x in row] for row in by_inputs(w, g)]),
        "numbers can be below 0",
    ),
    "leaves out rows of 0": (
        folded_with(sums_of=lambda w, f: [s for s in map(sum, f) if s]),
        "a bias for each output, also where they are 0",
    ),
    "in another order": (dressed(lambda folded: folded[::-1]), "Return a tuple: the folded weight"),
    "the weight alone": (dressed(lambda folded: folded[0]), "Return a tuple: the folded weight"),
    "without the sums": (dressed(lambda folded: folded[::2]), "Return a tuple: the folded weight"),
    "a dict": (dressed(lambda f: dict(zip("wsb", f, strict=True))), "where a list or a tuple was expected"),
    "nothing": (dressed(lambda folded: None), "A function without `return` gives None"),
    "in place": (folds_in_place, "changed its argument weight to [[2, 30], [200, 3000]]"),
    "the bias in place": (adds_to_the_bias_in_place, "changed its argument bias to [26, 2106]"),
}


@pytest.mark.parametrize(("attempt", "words"), WRONG_FOLDS.values(), ids=WRONG_FOLDS)
def test_a_wrong_fold_is_refused_in_the_contract_s_words(attempt, words):
    assert words in FOLD.grade(attempt)


def with_tensors(norm_weight, norm_bias, weight, bias, unit):
    weight, norm_bias = torch.tensor(weight).double(), torch.tensor(norm_bias).double()
    folded = (weight * torch.tensor(norm_weight) / unit).round() * unit
    return folded, folded.sum(1), weight @ norm_bias + (0 if bias is None else torch.tensor(bias))


def with_arrays(norm_weight, norm_bias, weight, bias, unit):
    folded = (np.array(weight) * norm_weight / unit).round() * unit
    return [folded, folded @ np.ones(len(norm_bias)), np.array(weight) @ norm_bias + np.array(bias or 0)]


RIGHT_FOLDS = {
    "a list": dressed(list),
    "tuples of tuples": dressed(lambda f: (tuple(map(tuple, f[0])), tuple(f[1]), tuple(f[2]))),
    "tensors": with_tensors,
    "arrays": with_arrays,
    "a bias of zeros": lambda bias, weight, **norm: FOLD.solution(
        bias=[0] * len(weight) if bias is None else bias, weight=weight, **norm
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("attempt", RIGHT_FOLDS.values(), ids=RIGHT_FOLDS)
def test_a_right_fold_is_right_in_any_clothes(attempt):
    assert FOLD.grade(attempt) == f"fold: right, all {len(FOLD.cases)} cases."


def test_the_engine_folds_alike():
    """Where nothing is rounded."""
    given = {
        "norm_weight": [2.0, 0.5],
        "norm_bias": [1.0, -1.0],
        "weight": [[1.0, 4.0], [0.5, 8.0]],
        "bias": [3.0, 0.0],
    }
    layer = kernels.fold_layer_norm(eps=1e-5, **{name: torch.tensor(t) for name, t in given.items()})
    made = (layer.weight.tolist(), layer.column_sums.tolist(), layer.bias.tolist())
    assert made == FOLD.solution(**given, unit=2**-10)


def test_random_layers_have_all_shapes_and_some_have_no_bias():
    rng = random.Random(0)
    drawn = [draw_layer(rng) for _ in range(100)]
    assert {(len(d["weight"]), len(d["norm_weight"])) for d in drawn} == {
        (n, k) for n in range(1, 5) for k in range(1, 5)
    }
    assert {d["bias"] is None for d in drawn} == {True, False}
