"""Prompts that were computed before: their blocks are shared, and only what follows is computed."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from labkit.kvcache.block_manager import KVBlockManager


@dataclass(frozen=True, eq=False)
class PrefixEntry:
    """A cached prompt: its token ids, its blocks, of which the last may be partly filled, and the logits
    after its last token."""

    token_ids: tuple[int, ...]
    block_ids_per_layer: list[list[int]]
    last_logits: Tensor  # [V]
    start: ClassVar[int] = 0

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.token_ids)

    @property
    def text(self) -> tuple[int, ...]:
        """The prompt."""
        return self.token_ids


class PrefixCache:
    """Whole prompts by their token ids, with their blocks kept alive; the least recently used is evicted
    first."""

    watch_points = ("lookup", "insert", "evict_one")

    def __init__(self, kv_manager: KVBlockManager, max_entries: int) -> None:
        self._kv_manager = kv_manager
        self._max_entries = max_entries
        self._entries: OrderedDict[tuple[int, ...], PrefixEntry] = OrderedDict()  # least recently used first
        self._lengths: Counter[int] = Counter()  # how many entries have each number of tokens
        self.num_evicted = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[PrefixEntry]:
        return iter(self._entries.values())

    def can_free(self, num_blocks: int) -> bool:
        """Whether so many blocks, in each layer, would be free if every entry were evicted."""
        held = Counter(i for entry in self._entries.values() for i in entry.block_ids_per_layer[0])
        return sum(self._kv_manager.refcount(i) == count for i, count in held.items()) >= num_blocks

    def lookup(self, token_ids: Sequence[int]) -> PrefixEntry | None:
        """The longest cached prompt that `token_ids` begins with; it counts as used."""
        for length in sorted(self._lengths, reverse=True):
            key = tuple(token_ids[:length])
            if len(key) == length and key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
        return None

    def is_coming(self, token_ids: Sequence[int], computing: Iterable[Sequence[int]]) -> bool:
        """False: nobody waits for another's prompt."""
        return False

    def insert(
        self,
        token_ids: Sequence[int],
        block_ids_per_layer: list[list[int]],
        last_logits: Tensor | None = None,
    ) -> None:
        """Keep a prompt that has just been computed, by sharing its blocks. What has no logits is none."""
        if last_logits is None:
            return
        key = tuple(token_ids)
        if key in self._entries:
            self._entries.move_to_end(key)
            return
        while len(self._entries) >= self._max_entries:
            self.evict_one()
        last_logits = last_logits.clone()  # a row of its own: the batch's logits can go
        shared = [self._kv_manager.share(block_ids) for block_ids in block_ids_per_layer]
        self._entries[key] = PrefixEntry(key, shared, last_logits)
        self._lengths[len(key)] += 1

    def keep_text(self, token_ids: Sequence[int], block_ids_per_layer: list[list[int]]) -> None:
        """Nothing: only prompts are kept."""

    def forget(self, block_ids_per_layer: list[list[int]]) -> None:
        """Nothing: each prompt was inserted when its logits were known to be numbers."""

    def evict_one(self) -> bool:
        """Drop the least recently used entry; False if there is none. Blocks that sessions share stay
        alive."""
        if not self._entries:
            return False
        key, entry = self._entries.popitem(last=False)
        self._lengths -= Counter([len(key)])  # subtracting drops a length at zero
        for block_ids in entry.block_ids_per_layer:
            self._kv_manager.free(block_ids)
        self.num_evicted += 1
        return True

    def clear(self) -> None:
        """Drop every entry."""
        while self.evict_one():
            pass
