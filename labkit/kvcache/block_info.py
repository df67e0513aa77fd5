"""What the manager knows of one block, as a record that is replaced and as one that is changed."""

from dataclasses import dataclass
from typing import NamedTuple


class KVBlockInfo(NamedTuple):
    """An immutable record: counting one token makes a new one (the state before seed 064)."""

    layer: int
    block_index: int  # the block's place in its layer's pool
    start: int  # position of its first token in the sequence
    length: int  # tokens written so far


@dataclass(slots=True)
class MutableKVBlockInfo:
    """A mutable record without a dict of its own: counting one token adds to `length` (seed 064)."""

    layer: int
    block_index: int
    start: int
    length: int
