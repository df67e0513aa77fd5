"""Shares on paper: the package's plan, the check of the reader's, and who has most."""

import math

import pytest
import torch

from labkit.learn.lesson_13.shares import as_many_each, check_shares, smallest_size


def right(pieces, most):
    size = smallest_size(pieces, most)
    return [max(1, -(-n // size)) for n in pieces]


WRONG = {
    "as on the rung below": (
        as_many_each,
        "nobody waits for a large share: with requests of [9, 1] pieces, 4",
    ),
    "all pieces alone": (lambda pieces, most: [max(1, n) for n in pieces], "all shares run at once"),
    "in proportion": (
        lambda pieces, most: [max(1, most * n // max(1, sum(pieces))) for n in pieces],
        "no share is cut smaller than the largest",
    ),
    "none for an empty row": (
        lambda pieces, most: [
            -(-n // 3) if 0 in pieces else count for n, count in zip(pieces, right(pieces, most), strict=True)
        ],
        "each request has a share, also one without tokens",
    ),
    "changes the pieces": (lambda pieces, most: pieces.sort() or right(pieces, most), "changed its argument"),
    "no end": (lambda pieces, most: forever(), "the search has no end"),
    "no more than 16": (
        lambda pieces, most: [min(16, count) for count in right(pieces, most)],
        "nobody waits for a large share: with requests of [40, 1] pieces, 30",
    ),
}


def forever():
    while True:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_wrong_shares_are_refused_by_what_they_break(name):
    attempt, words = WRONG[name]
    report = check_shares(attempt)
    assert not report.ok and words in report.text, report.text


def by_bisection(pieces, most):
    low, high = 0, max(pieces)
    while high - low > 1:
        middle = (low + high) // 2
        fits = sum(max(1, math.ceil(n / middle)) for n in pieces) <= most
        low, high = (low, middle) if fits else (middle, high)
    return torch.tensor([max(1, math.ceil(n / high)) for n in pieces])


@pytest.mark.parametrize("attempt", [right, by_bisection, lambda *about: tuple(right(*about))])
def test_right_shares_pass_in_any_clothes(attempt):
    report = check_shares(attempt)
    assert report.text == "shares: right. 9 batches in shares that are as small as can be."
