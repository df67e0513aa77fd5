"""Sums over GPUs of one host that write into each other's memory, in the kernel that adds the residual."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
import torch.nn.functional as F
from torch import Tensor

from labkit.kernels import NormLinear, RowStatistics
from labkit.kernels.residual_sum import PeerParts, residual_sum_of_peers_triton, words_of

# Of all ranks' parts of a sum that every rank makes whole. 128 rows of 4,096 took 11 us beside NCCL's 18 on
# two H100s; on four H200s 32 of them paid, and 128 did not. Of more, NCCL's ranks make a part each.
MOST_VALUES = 2**20


class PeerMemorySum:
    """Two inboxes for the other ranks' parts of a sum, in symmetric memory, which launches take in turn.

    A rank writes into the one again two sums later: by then the sum between has told that all have read it.
    """

    def __init__(self, rank: int, size: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        """Made by all ranks together. width: E."""
        self._rank = rank
        self.most_rows = max(1, MOST_VALUES // (size * width))
        self._room = words_of(self.most_rows * width, dtype)
        empty = torch.zeros(size, self._room, dtype=torch.int64, device=device)
        self._inboxes = [shared(empty), shared(empty)]
        self._turn = 0

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor,
        behind: NormLinear | None = None,
    ) -> tuple[Tensor, RowStatistics]:
        """residual + the sum of every rank's linear(x) [M, E], and the statistics of its rows, which bring
        the rows behind the norm of the product `behind` as well."""
        self._turn = 1 - self._turn
        _, addresses = self._inboxes[self._turn]
        parts = PeerParts(F.linear(x, weight, bias), addresses, self._room, self._rank)
        return residual_sum_of_peers_triton(parts, residual, behind)


def shared(like: Tensor) -> tuple[Tensor, Tensor]:
    """A tensor like this one, in memory that every rank's GPU can reach, and the addresses [R] of every
    rank's."""
    group = dist.group.WORLD
    assert group is not None
    tensor = symmetric.empty(*like.shape, dtype=like.dtype, device=like.device)
    handle = symmetric.rendezvous(tensor, group)
    tensor.copy_(like)
    torch.cuda.synchronize(like.device)
    dist.barrier()  # nobody signals before all are at 0
    theirs = [handle.get_buffer(rank, like.shape, like.dtype) for rank in range(group.size())]
    addresses = [each.data_ptr() for each in theirs]
    return tensor, torch.tensor(addresses, dtype=torch.int64, device=like.device)


def can_share(rank: int, size: int) -> bool:
    """Whether this rank's GPU reaches the memory of all others, which are of the same host."""
    return size <= torch.cuda.device_count() and all(
        torch.cuda.can_device_access_peer(rank, other) for other in range(size) if other != rank
    )
