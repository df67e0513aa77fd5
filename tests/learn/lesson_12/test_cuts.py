"""Cuts by a sort, beside the searches that take their place."""

import torch

from labkit.kernels.distribution import scaled
from labkit.kernels.sampling import crossing
from labkit.learn.lesson_12.cuts import crossing_by_sort, package_top_p, top_p_by_sort


def test_a_crossing_by_a_sort_is_the_one_that_is_searched_for():
    generator = torch.Generator().manual_seed(3)
    keys = torch.randint(-9, 9, (40, 30), generator=generator)
    weights = torch.rand(40, 30, generator=generator).double()
    limits = torch.linspace(0, 20, 40)  # the last ones are more than all weigh
    distinct = keys * 30 + torch.arange(30)  # where keys tie, only a search takes them together
    assert torch.equal(crossing_by_sort(distinct, weights, limits), crossing(distinct, weights, limits))


def test_top_p_by_a_sort_keeps_what_the_package_keeps():
    scores = scaled(torch.randn(50, 64, generator=torch.Generator().manual_seed(4)), torch.ones(50).double())
    scores[0] = 0.0
    top_ps = torch.linspace(0.02, 1, 50, dtype=torch.float64)
    assert torch.equal(top_p_by_sort(scores, top_ps), package_top_p(scores, top_ps))
    assert package_top_p(scores, top_ps)[-1].isfinite().all()
