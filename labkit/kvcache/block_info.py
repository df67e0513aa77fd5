"""What a block manager knows of one block: as a record that is replaced, and as one that is changed."""

from collections.abc import Iterable, KeysView
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar


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


class BlockInfo(Protocol):
    """A block's record as anything but its manager sees it: to be read, not changed."""

    @property
    def layer(self) -> int:
        """The layer, or the table that serves all layers, that the block belongs to."""

    @property
    def block_index(self) -> int:
        """The block's place in its layer's pool."""

    @property
    def start(self) -> int:
        """Position of its first token in the sequence."""

    @property
    def length(self) -> int:
        """Tokens written so far."""


Info_co = TypeVar("Info_co", bound=BlockInfo, covariant=True)


class BlockInfos(Protocol[Info_co]):
    """The table of records by block id. A manager puts in only what its `info_type` makes, so one with a
    narrower record type reads that type here."""

    def __getitem__(self, block_id: int, /) -> Info_co: ...
    def __setitem__(self, block_id: int, info: Any, /) -> None: ...
    def get(self, block_id: int, /) -> Info_co | None:
        """The block's record; None if it is not allocated."""

    def pop(self, block_id: int, /) -> Info_co:
        """Take the block's record out. Raises KeyError if it is not allocated."""

    def keys(self) -> KeysView[int]:
        """The ids of the allocated blocks."""

    def values(self) -> Iterable[Info_co]:
        """All records."""
