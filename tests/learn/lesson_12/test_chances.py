"""Frequencies of drawn tokens, and where rounding decides what is kept."""

import pytest
import torch

from labkit.kernels import draw_plain
from labkit.learn.lesson_12.chances import chi_square, judged, limit_of, one_too_many, sizes_that_differ


def test_chi_square_counts_rare_tokens_as_one():
    counts, expected = torch.tensor([12.0, 18.0, 3.0, 2.0, 0.0]), torch.tensor([15.0, 15.0, 2.0, 3.0, 0.0])
    assert chi_square(counts, expected) == (pytest.approx(9 / 15 + 9 / 15 + 0), 2)
    assert chi_square(torch.tensor([9.0, 1.0]), torch.tensor([10.0, 0.0])) == (float("inf"), 0)


@pytest.mark.parametrize(("degrees", "limit"), [(20, 45.315), (39, 72.055), (100, 149.449)])
def test_the_limit_is_that_of_tables(degrees, limit):
    assert limit_of(degrees) == pytest.approx(limit, rel=4e-3)


@pytest.mark.slow
@pytest.mark.parametrize("manner", ["temperature 0.8", "top-k 40", "top-p 0.95"])
def test_the_package_s_tokens_are_as_frequent_as_they_should_be(manner):
    assert judged(draw_plain, manner).endswith(": as expected")


@pytest.mark.slow
def test_a_cut_that_is_too_late_is_found():
    assert "chi-square inf," in judged(one_too_many, "top-k 40")
    assert judged(one_too_many, "top-k 40").endswith("not as expected")


def test_float64_sums_keep_what_a_sort_keeps_where_many_tokens_tie():
    differing = sizes_that_differ(0.9, range(10, 401, 10))
    assert differing["float64 sums"] == 0 and differing["float32 sums"] > 0
