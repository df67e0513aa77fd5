"""What the manager knows of one block, as a record that is replaced and as one that is changed."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar


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


class BlockInfo(Protocol):
    """What both records tell a reader; only the manager that made one may count in it."""

    @property
    def layer(self) -> int: ...
    @property
    def block_index(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def length(self) -> int: ...


Info_co = TypeVar("Info_co", bound=BlockInfo, covariant=True)


class BlockInfos(Protocol[Info_co]):
    """Records by block id. A manager puts in what its `info_type` makes, so a manager with a narrower record
    reads narrower records here."""

    def __getitem__(self, block_id: int, /) -> Info_co: ...
    def __setitem__(self, block_id: int, info: Any, /) -> None: ...
    def get(self, block_id: int, /) -> Info_co | None: ...
    def pop(self, block_id: int, /) -> Info_co: ...
    def values(self) -> Iterable[Info_co]: ...
