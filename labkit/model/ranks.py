"""The processes that share a network's weights."""

from typing import Any, Protocol

import torch
from torch import Tensor


class PeerSum(Protocol):
    """Sums of few rows that ranks write into each other's memory, in the kernel that needs them."""

    most_rows: int

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, behind: Any = None
    ) -> Any:
        """residual + the sum of every rank's linear(x) [M, E], and the statistics of its rows. With a product
        `behind` it they bring the rows behind that one's norm as well."""


class Ranks:
    """One process that has all weights: nothing is cut, so nothing has to be put together.

    Where there are more (`labkit.parallel`), each process is a rank with its part of every layer.
    """

    rank = 0
    size = 1

    def sum(self, x: Tensor) -> Tensor:
        """The sum of every rank's x, in x itself."""
        return x

    def gather(self, x: Tensor) -> Tensor:
        """Every rank's x [B, V], beside each other in the order of ranks: [B, size * V]."""
        return x

    def least(self, number: int) -> int:
        """The least of every rank's number."""
        return number

    def peer_sum(self, width: int, dtype: torch.dtype) -> PeerSum | None:
        """A way to sum rows of this width that is faster than `sum`, if there is one; made by all ranks
        together, for launches that follow each other."""
        return None


ALONE = Ranks()
