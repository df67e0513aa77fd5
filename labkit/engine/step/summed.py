"""The products of a fused step whose result is a sum over ranks, each with a part of the inputs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from labkit.engine.step.fused import FusedKernels
from labkit.kernels import NormLinear, RowStatistics
from labkit.kernels.residual_sum import residual_sum_plain, residual_sum_triton
from labkit.model import Network
from labkit.model.ranks import PeerSum, Ranks


def summed(kernels: FusedKernels, network: Network) -> FusedKernels:
    """These kernels with the sum over all ranks between a product and the residual it is added to."""
    ranks = network.ranks
    if ranks.size == 1:
        return kernels
    if kernels.measured is None:
        product = partial(linear_sum_residual, ranks=ranks, add=residual_sum_plain)
    else:
        peer_sum = ranks.peer_sum(network.config.hidden_size, network.dtype)
        product = partial(linear_sum_residual, ranks=ranks, add=residual_sum_triton, peer_sum=peer_sum)
    return kernels._replace(linear_residual=product)


def linear_sum_residual(
    x: Tensor,  # [M, K], this rank's part
    weight: Tensor,  # [N, K]
    bias: Tensor | None,  # [N], on one of the ranks
    residual: Tensor,  # [M, N]
    *,
    ranks: Ranks,
    add: Callable[[Tensor, Tensor, NormLinear | None], tuple[Tensor, RowStatistics]],
    peer_sum: PeerSum | None = None,
    behind: NormLinear | None = None,
    **_of_tiles: Any,  # which PyTorch's product has no use for
) -> tuple[Tensor, RowStatistics]:
    """residual + the sum of every rank's linear(x) [M, N], and the statistics of its rows.

    peer_sum: for as many rows as it takes. behind: a product whose norm is made of them as well.
    """
    if peer_sum is not None and len(x) <= peer_sum.most_rows:
        return peer_sum(x, weight, bias, residual, behind)
    return add(ranks.sum(F.linear(x, weight, bias)), residual, behind)
