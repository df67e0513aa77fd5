"""The paired comparison: its interval, its verdicts and its warning."""

from dataclasses import replace

import numpy as np
import pytest

from labkit.errors import RecordError
from labkit.results import Comparison, amdahl, speedup_interval
from labkit.results.comparison import Interval


def comparison(before, after, **changes) -> Comparison:
    return replace(Comparison("A", "B", tuple(before), tuple(after), {}, {}), **changes)


def test_twice_as_fast_is_faster_and_the_other_way_round_slower():
    rng = np.random.default_rng(0)
    slow, fast = 2 * np.exp(rng.normal(0, 0.02, 10)), np.exp(rng.normal(0, 0.02, 10))
    faster, slower = comparison(slow, fast), comparison(fast, slow)
    assert faster.verdict == "faster" and slower.verdict == "slower"
    assert faster.speedup == pytest.approx(2, rel=0.03)
    assert faster.speedup == pytest.approx(1 / slower.speedup)
    low, high = faster.interval
    assert 1.9 < low < 2 < high < 2.1


def test_equal_times_cannot_be_told_apart():
    same = comparison([1.0] * 6, [1.0] * 6)
    assert same.interval == (1, 1) and same.verdict == "cannot tell"


def test_a_slow_round_and_a_run_that_hangs_do_not_move_the_ratio():
    """Medians, of times that are divided by their round's."""
    assert comparison([2, 2, 20, 20, 2, 2], [1, 1, 10, 10, 1, 100]).speedup == pytest.approx(2)


def test_noise_that_happens_to_be_the_same_on_both_sides_is_still_noise():
    """Each side is resampled by itself: that their runs are alike, one by one, is no evidence."""
    noise = np.exp(np.random.default_rng(5).normal(0, 0.05, 10))
    low, high = comparison(noise, noise).interval
    assert 0.9 < low < 0.99 < 1.01 < high < 1.1


def noisy(kind: str, rng: np.random.Generator, rounds: int = 5) -> np.ndarray:
    """Times of 4 * rounds runs of one and the same thing."""
    times = np.exp(rng.normal(0, 0.02, 4 * rounds))
    if kind == "drift":
        times *= np.exp(np.cumsum(rng.normal(0, 0.02, 4 * rounds)))
    if kind == "spikes":
        times *= 1 + (rng.random(4 * rounds) < 0.12) * rng.exponential(0.3, 4 * rounds)
    if kind == "steps":
        times *= np.repeat(np.exp(rng.normal(0, 0.06, rounds)), 4)
    return times


def sides_of(times: np.ndarray) -> tuple[list[float], list[float]]:
    by_round = times.reshape(-1, 4)
    return by_round[:, [0, 3]].ravel().tolist(), by_round[:, [1, 2]].ravel().tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["quiet", "drift", "spikes", "steps"])
def test_the_same_thing_twice_is_rarely_called_different(kind):
    """Of 150 comparisons of simulated noise, at most 6: the self-test asks for 18 of 20."""
    rng = np.random.default_rng(3)
    verdicts = [comparison(*sides_of(noisy(kind, rng))).verdict for _ in range(150)]
    assert verdicts.count("cannot tell") >= 144


@pytest.mark.slow
def test_a_tenth_is_found_in_every_kind_of_noise():
    rng = np.random.default_rng(4)
    for kind in ("quiet", "drift", "steps"):
        found = 0
        for _ in range(20):
            before, after = sides_of(noisy(kind, rng))
            found += comparison(before, [0.9 * t for t in after]).verdict == "faster"
        assert found >= 19, kind


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ([1.0], [1.0], "1 and 1 runs do not make rounds"),
        ([1.0, 1.0], [1.0] * 4, "2 and 4 runs"),
        ([], [], "0 and 0 runs"),
        ([1.0, 0.0], [1.0, 1.0], "took no time"),
    ],
)
def test_samples_that_make_no_rounds_are_refused(before, after, message):
    with pytest.raises(RecordError, match=message):
        speedup_interval(before, after)


def test_a_comparison_says_what_was_measured_on_both_sides():
    made = comparison(
        [2.0, 4.0, 2.0, 4.0], [0.5, 1.0, 0.5, 1.0], after_paths={"in_place": 1536, "boundary": 64}
    )
    assert str(made).splitlines() == [
        f"A -> B: x4.000 {made.interval}, faster",
        "  A: median 3 s",
        "  B: median 0.75 s, paths: 1,536 in_place, 64 boundary",
    ]


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        ((1.0004, 1.5), "[1.0004, 1.500]"),
        ((0.9, 0.99996), "[0.900, 0.99996]"),
        ((1.0, 1.2), "[1.000, 1.200]"),
        ((1.00000001, 1.2), "[1.000, 1.200]"),
    ],
)
def test_an_interval_shows_on_which_side_of_1_its_ends_lie(interval, text):
    assert str(Interval(*interval)) == text


def test_the_whole_gets_faster_by_a_part():
    assert amdahl(18 / 23, 2) == pytest.approx(23 / 14)
    assert amdahl(0.5, 1) == 1 and amdahl(0.5, float("inf")) == 2
