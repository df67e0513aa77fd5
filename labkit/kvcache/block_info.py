"""What the manager knows of one block."""

from typing import NamedTuple


class KVBlockInfo(NamedTuple):
    """An immutable record: counting one token makes a new one (the state before seed 064)."""

    layer: int
    block_index: int  # the block's place in its layer's pool
    start: int  # position of its first token in the sequence
    length: int  # tokens written so far
