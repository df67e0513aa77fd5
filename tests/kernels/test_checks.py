"""The checks before a launch: which tensors pass, and that their values are not looked at."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.kernels.checks import check_tensor

X = torch.zeros(2, 3, 4)


@pytest.mark.parametrize("gapped", [X[..., ::2], X[0, 0].expand(2, 4).t()], ids=["steps", "repeated"])
def test_a_last_dimension_with_gaps_is_refused_only_where_it_matters(gapped: Tensor):
    check_tensor("x", gapped, shape=tuple(gapped.shape))
    with pytest.raises(ValueError, match=r"^x has strides \(.*, expected the last dimension to be contig"):
        check_tensor("x", gapped, shape=tuple(gapped.shape), last_stride_is_1=True)


class Nothing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was run")


def test_a_name_leaves_a_size_free_and_no_value_is_looked_at():
    """Trap 3: on a GPU a look at one number makes the host wait for all that runs."""
    indices = torch.tensor([[-1, 99]])
    with Nothing():
        check_tensor("i", indices, shape=("B", "B"), dtype=torch.int64, last_stride_is_1=True)
