"""The products of a fused step whose result is a sum over ranks, each with a part of the inputs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from labkit.engine.step.fused import FusedKernels
from labkit.kernels import RowStatistics
from labkit.kernels.residual_sum import residual_sum_plain, residual_sum_triton
from labkit.model.ranks import Ranks


def summed(kernels: FusedKernels, ranks: Ranks) -> FusedKernels:
    """These kernels with the sum over all ranks between a product and the residual it is added to."""
    if ranks.size == 1:
        return kernels
    add = residual_sum_plain if kernels.measured is None else residual_sum_triton
    return kernels._replace(linear_residual=partial(linear_sum_residual, ranks=ranks, add=add))


def linear_sum_residual(
    x: Tensor,  # [M, K], this rank's part
    weight: Tensor,  # [N, K]
    bias: Tensor | None,  # [N], on one of the ranks
    residual: Tensor,  # [M, N]
    *,
    ranks: Ranks,
    add: Callable[[Tensor, Tensor], tuple[Tensor, RowStatistics]],
    **of_tiles: Any,
) -> tuple[Tensor, RowStatistics]:
    """residual + the sum of every rank's linear(x) [M, N], and the statistics of its rows.

    of_tiles: what `linear_residual` takes for its tiles, which PyTorch's product has no use for.
    """
    return add(ranks.sum(F.linear(x, weight, bias)), residual)
