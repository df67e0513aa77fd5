"""What a block manager knows of one block: as a record that is replaced, and as one that is changed."""

from dataclasses import dataclass
from typing import NamedTuple


class KVBlockInfo(NamedTuple):
    """A block's record, immutable: counting one token makes a new record (the state before write-up 064)."""

    layer: int
    block_index: int  # the block's place in its layer's pool
    start: int  # position of its first token in the sequence
    length: int  # tokens written so far


@dataclass(slots=True)
class MutableKVBlockInfo:
    """A block's record, mutable and with slots: counting one token adds to its `length` (write-up 064)."""

    layer: int
    block_index: int
    start: int
    length: int


# A block's record, to be read. `layer` is a layer, or the one table that serves all layers.
BlockInfo = KVBlockInfo | MutableKVBlockInfo
