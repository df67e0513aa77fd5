"""Lesson 04's statistics: what a few runs can say."""

import pytest

from labkit import results
from labkit.learn.lesson_04 import small_gains


@pytest.mark.parametrize(
    ("before", "after", "as_far", "ways"),
    [
        ((1, 2, 3), (4, 5, 6), 2, 20),  # these labels, and all of them swapped
        ((4, 5, 6), (1, 2, 3), 2, 20),
        ((1, 6), (3, 4), 6, 6),  # equal means: every way sets them as far apart
        ((1.0,), (1.1, 1.2), 2, 3),  # a single run before: it could also be the highest
        ((1, 1, 1), (1, 1, 1), 20, 20),
    ],
)
def test_relabelled_counts_the_ways(before, after, as_far, ways):
    assert small_gains.relabelled(before, after) == (as_far, ways)


def test_relabelled_does_not_depend_on_the_order_of_runs():
    published = results.headline("04")
    counted = small_gains.relabelled(published["before_runs"], published["after_runs"])
    assert counted == small_gains.relabelled(
        sorted(published["before_runs"]), sorted(published["after_runs"])
    )
    assert counted == small_gains.relabelled(published["after_runs"], published["before_runs"]) == (4, 20)


def test_spread_is_relative_and_pooled():
    assert small_gains.spread((9, 10, 11)) == pytest.approx(0.1)
    assert small_gains.spread((9, 10, 11), (90, 100, 110)) == pytest.approx(0.1)
    assert small_gains.spread((10, 10), (9, 10, 11)) == pytest.approx(0.1 / 2**0.5)


@pytest.mark.slow
def test_more_runs_detect_more_and_nothing_is_rarely_found():
    assert small_gains.detected(8, 0.01, 0.2) == 1.0
    assert small_gains.detected(8, 0.01, -0.2) == 1.0
    few, many = (small_gains.detected(runs, 0.01, 0.015, experiments=20) for runs in (4, 32))
    assert few < many
    assert small_gains.detected(16, 0.01, 0.0, experiments=20) <= 0.1
    assert small_gains.detected(8, 0.01, 0.01, experiments=10) == small_gains.detected(
        8, 0.01, 0.01, experiments=10
    )
