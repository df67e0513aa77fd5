"""The graders of lesson 09: wrong answers are refused in the contract's words, right ones are right."""

import random

import numpy as np
import pytest
import torch

from labkit import kernels
from labkit.learn import lesson_09, not_attempted
from labkit.learn.lesson_09 import FOLD, MERGE, draw_layer, draw_parts


@pytest.mark.parametrize("exercise", [MERGE, FOLD], ids=lambda exercise: exercise.name)
def test_the_solution_is_right_and_an_empty_cell_is_not_attempted(exercise):
    right = f"{exercise.name}: right, all {len(exercise.cases)} cases."
    assert exercise.grade(exercise.solution) == exercise.grade(exercise.solution) == right
    assert exercise.grade(lambda **_: not_attempted()) == f"{exercise.name}: not attempted yet."
    assert len({case.hint for case in exercise.cases}) == len(exercise.cases)


# --- merge -----------------------------------------------------------------------------------------------


def keeps_the_sums(parts):
    return [sum(acc[d] for _, _, acc in parts) for d in range(len(parts[0][2]))]


def averages_outputs(parts):
    outputs = [[x / total for x in acc] for _, total, acc in parts]
    return [sum(column) / len(parts) for column in zip(*outputs, strict=True)]


def forgets_to_rescale(parts):
    total = sum(total for _, total, _ in parts)
    return [sum(column) / total for column in zip(*(acc for *_, acc in parts), strict=True)]


def merged(parts, top, base=2.0, *, rescales=("acc", "total"), head_size=None):
    """The solution with one thing wrong."""

    def share(largest, what):
        return base ** (largest - top) if what in rescales else 1.0

    total = sum(share(m, "total") * part_total for m, part_total, _ in parts)
    columns = range(head_size or len(parts[0][2]))
    return [sum(share(m, "acc") * acc[d] for m, _, acc in parts) / total for d in columns]


def largest_of(parts):
    return max(largest for largest, *_ in parts)


def one_after_the_other(parts, rescaled=lambda number: True, start=None):
    """A running merge."""
    (largest, total, acc), rest = (start, parts) if start else (parts[0], parts[1:])
    for number, (part_largest, part_total, part_acc) in enumerate(rest):
        top = max(largest, part_largest)
        a, b = 2.0 ** (largest - top), 2.0 ** (part_largest - top)
        if not rescaled(number):
            a = 1.0
        largest, total = top, a * total + b * part_total
        acc = [a * x + b * y for x, y in zip(acc, part_acc, strict=True)]
    return [x / total for x in acc]


def with_numpy(parts, top_of=np.max):
    largest, totals, accs = (np.array(each) for each in zip(*parts, strict=True))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        shares = 2.0 ** (largest - top_of(largest))
        return (shares[:, None] * accs).sum(0) / (shares * totals).sum()


def by_softmax_of_the_largest(parts):
    weights = torch.tensor([largest for largest, *_ in parts]).softmax(0)
    return [sum(w * acc[d] / total for w, (_, total, acc) in zip(weights.tolist(), parts)) for d in (0, 1)]  # noqa: B905


def sorts_in_place(parts):
    parts.sort(key=lambda part: -part[0])
    return merged(parts, parts[0][0])


def leaves_empty_ones_out_of_acc_alone(parts):
    top = largest_of(parts)
    total = sum(part_total for _, part_total, _ in parts)
    return [
        sum(2.0 ** (m - top) * acc[d] for m, t, acc in parts if t) / total for d in range(len(parts[0][2]))
    ]


def skips_shares_of_one_token(parts):
    kept = [part for part in parts if part[1] > 1] or parts
    return merged(kept, largest_of(kept))


def takes_its_share_by_total(parts):
    top = largest_of(parts)
    shares = [2.0 ** (m - top) * total for m, total, _ in parts]
    return [
        sum(s * acc[d] for s, (*_, acc) in zip(shares, parts, strict=True)) / sum(shares)
        for d in range(len(parts[0][2]))
    ]


WRONG_MERGES = {
    "keeps the sums": (keeps_the_sums, "nothing is to be merged"),
    "the first part alone": (lambda parts: merged(parts[:1], parts[0][0]), "Add up the accs"),
    "the largest part alone": (
        lambda parts: merged([max(parts, key=lambda p: p[0])], largest_of(parts)),
        "Add up the accs",
    ),
    "the first two": (lambda parts: merged(parts[:2], largest_of(parts[:2])), "There can be any number"),
    "the first two that have tokens": (
        lambda parts: one_after_the_other([p for p in parts if p[1]][:2]),
        "There can be any number of parts",
    ),
    "averages outputs": (averages_outputs, "An average of the parts' own outputs"),
    "forgets to rescale": (forgets_to_rescale, "Bring both to the larger one"),
    "rescales acc alone": (lambda p: merged(p, largest_of(p), rescales=["acc"]), "and times total, too"),
    "rescales total alone": (lambda p: merged(p, largest_of(p), rescales=["total"]), "times acc, and times"),
    "base e": (lambda p: merged(p, largest_of(p), base=np.e), "Bring both to the larger one"),
    "the other way round": (lambda p: merged(p, largest_of(p), base=0.5), "Bring both to the larger one"),
    "raises the score itself": (lambda p: merged(p, 0.0), "raised OverflowError"),
    "raises the score itself, in NumPy": (
        lambda parts: with_numpy(parts, top_of=lambda largest: 0.0),
        "does not fit into a number",
    ),
    "counts from 0 at least": (lambda p: merged(p, max(0.0, largest_of(p))), "raised ZeroDivisionError"),
    "counts from 0 at least, in NumPy": (
        lambda parts: with_numpy(parts, top_of=lambda largest: max(0.0, largest.max())),
        "and not 0",
    ),
    "from the smallest": (lambda p: merged(p, min(m for m, *_ in p)), "merge against the largest"),
    "from the smallest that is there": (
        lambda parts: with_numpy(parts, top_of=lambda m: m[np.isfinite(m)].min()),
        "is more than a number holds",
    ),
    "from the mean": (
        lambda parts: with_numpy([p for p in parts if p[1]], top_of=np.mean),
        "to the largest of all",
    ),
    "from the first": (lambda parts: with_numpy(parts, top_of=lambda m: m[0]), "merge against the largest"),
    "never rescales what it has": (
        lambda p: one_after_the_other(p, rescaled=lambda number: False),
        "Bring both to the larger one",
    ),
    "rescales what it has only once": (
        lambda p: one_after_the_other([each for each in p if each[1]], rescaled=lambda number: number == 0),
        "whatever was added up before it came must be rescaled",
    ),
    "one after the other from -inf": (
        lambda p: one_after_the_other(p, start=(float("-inf"), 0.0, [0.0] * len(p[0][2]))),
        "-inf less -inf is no number",
    ),
    "softmax of the largest": (by_softmax_of_the_largest, "Add up the accs and the totals"),
    "weights by total": (takes_its_share_by_total, "nothing is to be merged"),
    "total not rescaled, empty ones left out": (leaves_empty_ones_out_of_acc_alone, "and times total, too"),
    "shares of one token": (skips_shares_of_one_token, "Add up the accs and the totals"),
    "rounds": (lambda p: [round(x, 3) for x in MERGE.solution(p)], "the output is not rounded"),
    "whole numbers": (lambda p: [int(x) for x in MERGE.solution(p)], "2 ** 5000 does not fit"),
    "at least 0": (lambda p: [max(0.0, x) for x in MERGE.solution(p)], "below 0, too"),
    "two columns": (lambda p: merged(p, largest_of(p), head_size=2), "raised IndexError"),
    "divides per column": (
        lambda p: [x / len(p) for x in MERGE.solution(p)],
        "Add up the accs and the totals",
    ),
    "a tuple of three": (lambda p: (largest_of(p), 1.0, MERGE.solution(p)), "nothing is to be merged"),
    "nested": (lambda p: [MERGE.solution(p)], "nothing is to be merged"),
    "a generator": (lambda p: (x for x in MERGE.solution(p)), "where a list or a tuple was expected"),
    "nothing": (lambda p: print(end=""), "A function without `return` gives None"),
    "sorts in place": (sorts_in_place, "changed its argument parts"),
    "without end": (lambda parts: [0 for _ in iter(lambda: 0, 1)], "Is there a loop that never stops?"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("attempt", "words"), WRONG_MERGES.values(), ids=WRONG_MERGES)
def test_a_wrong_merge_is_refused_in_the_contract_s_words(attempt, words):
    assert words in MERGE.grade(lambda parts: attempt(parts))


def as_tensors(parts):
    largest, totals, accs = map(torch.tensor, zip(*parts, strict=True))
    shares = (largest - largest.max()).exp2()
    return shares @ accs / (shares @ totals)


def running(parts):
    return one_after_the_other([part for part in parts if part[1] > 0])


RIGHT_MERGES = {
    "tuple": lambda parts: tuple(MERGE.solution(parts)),
    "array": with_numpy,
    "tensor in float32": as_tensors,
    "its numbers": lambda parts: list(as_tensors(parts)),
    "by e": lambda parts: [
        sum(np.exp(np.log(2) * (m - largest_of(parts))) * acc[d] for m, _, acc in parts)
        / sum(np.exp(np.log(2) * (m - largest_of(parts))) * total for m, total, _ in parts)
        for d in range(len(parts[0][2]))
    ],
    "running, without the empty ones": running,
    "outputs weighted by total": lambda parts: [
        sum(2.0 ** (m - largest_of(parts)) * total * (acc[d] / total) for m, total, acc in parts if total)
        / sum(2.0 ** (m - largest_of(parts)) * total for m, total, _ in parts)
        for d in range(len(parts[0][2]))
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("attempt", RIGHT_MERGES.values(), ids=RIGHT_MERGES)
def test_a_right_merge_is_right_in_any_clothes(attempt):
    assert MERGE.grade(attempt) == f"merge: right, all {len(MERGE.cases)} cases."


def test_the_solution_is_attention_whatever_program_has_a_token():
    generator = torch.Generator().manual_seed(0)
    scores = 10 * torch.randn(200, generator=generator, dtype=torch.float64)
    values = torch.randn(200, 4, generator=generator, dtype=torch.float64)
    whole = scores.softmax(0) @ values
    for shares in (1, 2, 7, 250):
        owner = torch.randint(shares, (200,), generator=generator)
        parts = [lesson_09.partial_softmax(scores[owner == i], values[owner == i]) for i in range(shares)]
        torch.testing.assert_close(torch.tensor(lesson_09.merge(parts), dtype=torch.float64), whole)


def test_random_parts_are_many_and_far_apart_and_some_are_empty():
    rng = random.Random(0)
    drawn = [draw_parts(rng)["parts"] for _ in range(100)]
    largest = [[m for m, *_ in parts if m > float("-inf")] for parts in drawn]
    assert sum(len(each) > 2 for each in largest) > 10
    assert sum(max(each) - min(each) > 1024 for each in largest) > 5
    assert sum(len(each) < len(parts) for each, parts in zip(largest, drawn, strict=True)) > 10


# --- fold ------------------------------------------------------------------------------------------------


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

    def fold(norm_weight, norm_bias, weight, bias):
        folded = weight_of(weight, norm_weight)
        return folded, sums_of(weight, folded), bias_of(weight, folded, norm_bias, bias)

    return fold


def folds_in_place(norm_weight, norm_bias, weight, bias):
    folded_bias = added(times(weight, norm_bias), bias)
    for row in weight:
        for k, g in enumerate(norm_weight):
            row[k] *= g
    return weight, [sum(row) for row in weight], folded_bias


def adds_to_the_bias_in_place(norm_weight, norm_bias, weight, bias):
    folded = by_inputs(weight, norm_weight)
    bias = [0] * len(weight) if bias is None else bias
    for n, row in enumerate(weight):
        bias[n] += sum(w * b for w, b in zip(row, norm_bias, strict=True))
    return folded, of_rows(weight, folded), bias


def dressed(clothes):
    return lambda **layer: clothes(FOLD.solution(**layer))


NOT_SQUARE = "a weight need not be square"
WRONG_FOLDS = {
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
        lambda norm_weight, norm_bias, weight, bias: (
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


def with_tensors(norm_weight, norm_bias, weight, bias):
    weight, norm_bias = torch.tensor(weight).double(), torch.tensor(norm_bias).double()
    folded = weight * torch.tensor(norm_weight)
    return folded, folded.sum(1), weight @ norm_bias + (0 if bias is None else torch.tensor(bias))


def with_arrays(norm_weight, norm_bias, weight, bias):
    folded = np.array(weight) * norm_weight
    return [folded, folded @ np.ones(len(norm_bias)), np.array(weight) @ norm_bias + np.array(bias or 0)]


def by_the_engine(norm_weight, norm_bias, weight, bias):
    given = (norm_weight, norm_bias, weight, bias)
    tensors = [None if each is None else torch.tensor(each).float() for each in given]
    layer = kernels.fold_layer_norm(
        norm_weight=tensors[0], norm_bias=tensors[1], weight=tensors[2], bias=tensors[3], eps=1e-5
    )
    return layer.weight, layer.column_sums, layer.bias


RIGHT_FOLDS = {
    "a list": dressed(list),
    "tuples of tuples": dressed(lambda f: (tuple(map(tuple, f[0])), tuple(f[1]), tuple(f[2]))),
    "tensors": with_tensors,
    "arrays": with_arrays,
    "the engine's own, in float32": by_the_engine,
    "a bias of zeros": lambda bias, weight, **norm: FOLD.solution(
        bias=[0] * len(weight) if bias is None else bias, weight=weight, **norm
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("attempt", RIGHT_FOLDS.values(), ids=RIGHT_FOLDS)
def test_a_right_fold_is_right_in_any_clothes(attempt):
    assert FOLD.grade(attempt) == f"fold: right, all {len(FOLD.cases)} cases."


def test_random_layers_have_all_shapes_and_some_have_no_bias():
    rng = random.Random(0)
    drawn = [draw_layer(rng) for _ in range(100)]
    assert {(len(d["weight"]), len(d["norm_weight"])) for d in drawn} == {
        (n, k) for n in range(1, 5) for k in range(1, 5)
    }
    assert {d["bias"] is None for d in drawn} == {True, False}
