"""The package's kernels of the page: each stores what its docstring says, run by hand."""

import pytest
import torch

from labkit.learn.before_03 import kernels
from labkit.learn.before_03.graders import add_one_launch, row_maxes_launch, row_sums_launch


@pytest.mark.parametrize(
    ("kernel", "launch", "stored"),
    [
        (kernels.add_one, add_one_launch(5, block=2), [1, 4, 7, 10, 13]),
        (kernels.row_sums, row_sums_launch(3, 2, 4, 2, 2), [3, 7, 11]),
        (kernels.row_maxes, row_maxes_launch(3, 3, 3, 2, 4), [-1, -4, -7]),
    ],
    ids=["add_one", "row_sums", "row_maxes"],
)
def test_what_is_stored(kernel, launch, stored):
    out = torch.zeros(len(stored))
    launch.record(kernel, out)
    assert out.tolist() == launch.expected.tolist() == stored
