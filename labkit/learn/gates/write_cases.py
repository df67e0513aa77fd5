"""The writes that the trials of `writes` try."""

from collections.abc import Sequence
from typing import NamedTuple

from labkit.kvcache.kv_write import is_constant

NUM_BLOCKS, BLOCK_SIZE = 6, 4  # of the pool that CASES and PAIRS write to


KINDS = {
    "full_batch": "the whole batch goes to one slot",
    "identity_pos": "the whole batch goes to slots that differ",
    "generic": "a part of the batch is written",
}


class Case(NamedTuple):
    """A write: which of B requests, with how many heads of which size, to which slots of which blocks."""

    batch_size: int
    num_heads: int
    head_dim: int
    batch_idx: tuple[int, ...]
    block_idx: tuple[int, ...]
    pos: tuple[int, ...]
    slots_first: bool = False  # in the pool's memory, slots of a block come before heads

    def __str__(self) -> str:
        return (
            f"with requests {list(self.batch_idx)} of a batch of {self.batch_size} ({self.num_heads} heads "
            f"of {self.head_dim} values) to slots {list(self.pos)} of blocks {list(self.block_idx)}"
        )

    @property
    def is_whole(self) -> bool:
        """Whether every request of the batch is written."""
        return len(self.batch_idx) == self.batch_size

    @property
    def path(self) -> str:
        """The path of such a write, where there are all."""
        if not self.is_whole:
            return "generic"
        return "full_batch" if is_constant(self.pos) else "identity_pos"

    @property
    def kind(self) -> str:
        """Which of the three kinds of writes this is, in words."""
        return KINDS[self.path]

    @property
    def indices(self) -> tuple[Sequence[int], list[int], list[int]]:
        """What `write` is given, as the block manager gives it."""
        batch_idx = range(self.batch_size) if self.is_whole else list(self.batch_idx)
        return batch_idx, list(self.block_idx), list(self.pos)


CASES = (
    Case(3, 2, 16, (0, 1, 2), (4, 1, 2), (2, 2, 2)),
    Case(1, 2, 16, (0,), (3,), (0,)),
    Case(2, 2, 16, (0, 1), (1, 0), (3, 1)),
    Case(3, 2, 16, (0, 1, 2), (5, 1, 2), (2, 0, 2)),  # the first and the last are at one position
    Case(4, 2, 16, (1, 3), (5, 0), (3, 0)),
    Case(4, 2, 16, (0, 1), (5, 0), (3, 0)),  # as far as it goes, the identity
    Case(3, 3, 20, (0, 1, 2), (2, 1, 0), (3, 3, 3)),  # heads of no power of 2
    Case(3, 3, 20, (0, 1, 2), (2, 1, 0), (1, 0, 2)),
    Case(3, 3, 20, (0, 2), (5, 1), (1, 0)),
    Case(3, 2, 16, (0, 1), (4, 2), (1, 1)),  # the first requests of a batch, at one position
    Case(2, 2, 16, (0, 1), (4, 2), (1, 1), slots_first=True),
    Case(2, 2, 16, (0, 1), (4, 2), (1, 3), slots_first=True),
    Case(3, 2, 16, (0, 2), (4, 2), (1, 3), slots_first=True),
)

FIRST = Case(3, 2, 16, (0, 1, 2), (4, 1, 2), (2, 0, 1))
AT_ONE_SLOT = FIRST._replace(pos=(1, 1, 1))
OF_A_PART = Case(4, 2, 16, (0, 2), (4, 1), (1, 2))
PAIRS = (  # writes of one part, one after the other
    (FIRST, FIRST._replace(pos=(3, 1, 2))),
    (FIRST, FIRST._replace(pos=(0, 2, 1))),
    (AT_ONE_SLOT, AT_ONE_SLOT._replace(block_idx=(4, 3, 2))),
    (OF_A_PART, OF_A_PART._replace(batch_idx=(1, 2))),
    (FIRST, Case(2, 2, 16, (0, 1), (4, 1), (2, 0))),  # a request has left
)

FAR_BLOCK = 2**18  # of a larger pool, past its 2**32nd number
FAR_CASES = (
    Case(1, 2, 64, (0,), (FAR_BLOCK,), (5,)),
    Case(2, 2, 64, (0, 1), (FAR_BLOCK, 1), (5, 0)),
    Case(3, 2, 64, (1,), (FAR_BLOCK,), (5,)),
)
