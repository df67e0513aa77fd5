"""The processes that share a network's weights."""

from torch import Tensor


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


ALONE = Ranks()
