"""Blocks of texts that were computed before, each found by a hash of all up to its end (rung 14)."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from labkit.kvcache.block_manager import KVBlockManager

NOTHING_FOUND: tuple[tuple[int, ...], list["CachedBlock"]] = ((), [])
ROOT_KEY = 0  # in place of the key of a block before, where there is none


class BlockPrefix(NamedTuple):
    """The cached blocks that a text begins with. No logits are kept, so its last token is not among them."""

    block_ids_per_layer: list[list[int]]
    num_tokens: int


@dataclass(eq=False, slots=True)  # not frozen: there are many, and one takes half the time to make
class CachedBlock:
    """A full block of a text, and the entry of the block before it.

    start: position of its first token.
    """

    key: int
    parent: "CachedBlock | None"
    token_ids: tuple[int, ...]  # as many as a block has slots
    block_id: int
    start: int

    @property
    def block_ids_per_layer(self) -> list[list[int]]:
        """The one block that it holds."""
        return [[self.block_id]]

    @property
    def num_tokens(self) -> int:
        """Tokens in the block."""
        return len(self.token_ids)

    @property
    def text(self) -> tuple[int, ...]:
        """All token ids up to the block's end."""
        chain = [entry.token_ids for entry in chain_to(self)]
        return tuple(token_id for token_ids in reversed(chain) for token_id in token_ids)


def chain_to(entry: CachedBlock | None) -> Iterator[CachedBlock]:
    """An entry, the one before it, and so on to the first of the text."""
    while entry is not None:
        yield entry
        entry = entry.parent


class BlockPrefixCache:
    """Full blocks by a chain of hashes: a block's key is made of the key before it and its own token ids.

    A key only says where to look: what is found there has to have these ids, and this block before it. Each
    entry holds its block once. Of two requests that computed the same block, the first one's is kept; and
    where two texts have one key, only the first is kept.

    The least recently used block goes first, but never one that somebody else holds, and never one before
    those that follow it: a block counts as used whenever one that follows it is. Only memory bounds all this.

    It needs a manager whose one table serves all layers.
    """

    watch_points = ("lookup", "insert", "evict_one")

    def __init__(self, kv_manager: KVBlockManager) -> None:
        self._kv_manager = kv_manager
        # By key. Least recently used first, and each entry before its parent, so that the first has no child.
        self.entries: OrderedDict[int, CachedBlock] = OrderedDict()
        self._of_block: dict[int, CachedBlock] = {}  # the same, by the id of the block that each holds
        self.num_evicted = 0
        self._last_found = NOTHING_FOUND  # a text, and what was found of it; until one of that goes

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[CachedBlock]:
        return iter(self.entries.values())

    # --- to find -----------------------------------------------------------------------------------

    def block_key(self, parent_key: int, token_ids: tuple[int, ...]) -> int:
        """The key of a block with these token ids, behind a block with that key (`ROOT_KEY`: behind none)."""
        return hash((parent_key, token_ids))

    def lookup(self, token_ids: Sequence[int]) -> BlockPrefix | None:
        """The cached blocks that a text begins with, all of them but never its last token; they count as
        used."""
        found = self.find(token_ids, self._num_reusable(token_ids))
        if not found:
            return None
        self.use(found[-1])
        return BlockPrefix([[entry.block_id for entry in found]], len(found) * self._kv_manager.block_size)

    def is_coming(self, token_ids: Sequence[int], computing: Iterable[Sequence[int]]) -> bool:
        """Whether the first block of this text that is not cached is one of a text that is being computed.

        Then the text had better wait until it is there. Nothing counts as used.
        """
        size, limit = self._kv_manager.block_size, self._num_reusable(token_ids)
        end = (len(self.find(token_ids, limit)) + 1) * size
        if end > limit * size:
            return False
        beginning = tuple(token_ids[:end])
        last = beginning[-1]  # tells most texts apart: of 64 that come at once, 2,016 pairs are compared
        return any(
            len(other) >= end and other[end - 1] == last and tuple(other[:end]) == beginning
            for other in computing
        )

    def _num_reusable(self, token_ids: Sequence[int]) -> int:
        """Full blocks of a text without its last token, which has to be computed for the logits after it."""
        return max(0, len(token_ids) - 1) // self._kv_manager.block_size

    def find(self, token_ids: Sequence[int], limit: int) -> list[CachedBlock]:
        """The entries of the blocks that a text begins with, `limit` of them at most."""
        found = self._found_before(token_ids, limit)
        parent = found[-1] if found else None
        for key, block in self._keys(token_ids, limit, behind=parent):
            entry = self.entries.get(key)
            if entry is None or entry.parent is not parent or entry.token_ids != block:
                break
            found.append(entry)
            parent = entry
        if isinstance(token_ids, tuple):  # which nobody can change
            self._last_found = token_ids, [*found]
        return found

    def _found_before(self, token_ids: Sequence[int], limit: int) -> list[CachedBlock]:
        """What was found of the text before, if this one begins so, too: the blocks of a system prompt are
        hashed once for many questions."""
        text, entries = self._last_found
        entries = entries[:limit]
        end = len(entries) * self._kv_manager.block_size
        return entries if text is token_ids or text[:end] == tuple(token_ids[:end]) else []

    def _keys(
        self, token_ids: Sequence[int], num_blocks: int, behind: CachedBlock | None
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The key and the token ids of each of a text's first blocks that come behind an entry."""
        key, size = behind.key if behind else ROOT_KEY, self._kv_manager.block_size
        for start in range(behind.start + size if behind else 0, num_blocks * size, size):
            block = tuple(token_ids[start : start + size])
            key = self.block_key(key, block)
            yield key, block

    # --- to keep -----------------------------------------------------------------------------------

    def insert(
        self,
        token_ids: Sequence[int],
        block_ids_per_layer: list[list[int]],
        last_logits: Tensor | None = None,
    ) -> None:
        """Keep the full blocks of what was computed of a prompt, by sharing them. The logits are not kept."""
        self.keep_text(token_ids, block_ids_per_layer)

    def keep_text(self, token_ids: Sequence[int], block_ids_per_layer: list[list[int]]) -> None:
        """Keep the full blocks of a text, by sharing them; all keys and values of `token_ids` are written.

        It may be said again when more of the text is there. Raises ValueError for a block that does not hold
        as many tokens as it should; those before it are kept.
        """
        (block_ids,) = block_ids_per_layer
        num_blocks = min(len(token_ids) // self._kv_manager.block_size, len(block_ids))
        kept = self._kept_before(token_ids, block_ids[:num_blocks])
        try:
            for key, block in self._keys(token_ids, num_blocks, behind=kept):
                entry = self.entries.get(key)
                if entry is None:
                    start = kept.start + len(block) if kept else 0
                    entry = self._new_entry(key, kept, block, block_ids[start // len(block)], start)
                    self.entries[key] = self._of_block[entry.block_id] = entry
                elif entry.parent is not kept or entry.token_ids != block:
                    break  # another text has this key; what follows could not be found without this block
                kept = entry
        finally:
            self.use(kept)

    def _kept_before(self, token_ids: Sequence[int], block_ids: list[int]) -> CachedBlock | None:
        """The last entry of a text that is found without a hash: most of its blocks were kept when the prompt
        was computed, or the text before began so, too."""
        for block_id in reversed(block_ids):
            if (entry := self._of_block.get(block_id)) is not None:
                return entry
        found = self._found_before(token_ids, len(block_ids))
        return found[-1] if found else None

    def _new_entry(
        self, key: int, parent: CachedBlock | None, token_ids: tuple[int, ...], block_id: int, start: int
    ) -> CachedBlock:
        info = self._kv_manager.info(block_id)
        if (info.start, info.length) != (start, len(token_ids)):
            raise ValueError(
                f"block {block_id} holds {info.length} tokens from position {info.start} on; to be cached it "
                f"must hold {len(token_ids)} from {start} on"
            )
        self._kv_manager.share([block_id])
        return CachedBlock(key, parent, token_ids, block_id, start)

    def use(self, entry: CachedBlock | None) -> None:
        """An entry counts as used, and then each one before it."""
        for used in chain_to(entry):
            self.entries.move_to_end(used.key)

    # --- to let go ---------------------------------------------------------------------------------

    def can_free(self, num_blocks: int) -> bool:
        """Whether evicting could free so many blocks: of those that nobody else holds, nor any behind them.

        It looks no further than it finds them, the least recently used first.
        """
        in_use: set[CachedBlock | None] = set()
        num_found = 0
        for entry in self:  # children first
            if num_found >= num_blocks:
                return True
            if entry in in_use or self.is_in_use(entry):
                in_use |= {entry, entry.parent}
            else:
                num_found += 1
        return num_found >= num_blocks

    def evict_one(self) -> bool:
        """Drop the least recently used block that may go, which is free then; False if there is none."""
        entry = self.next_to_evict()
        if entry is None:
            return False
        self._drop(entry)
        self.num_evicted += 1
        return True

    def next_to_evict(self) -> CachedBlock | None:
        """The least recently used entry whose block nobody else holds, and that none follows."""
        for _ in range(len(self.entries)):
            entry = next(iter(self))  # has no child
            if not self.is_in_use(entry):
                return entry
            self.use(entry)  # at this moment, so that it is not looked at again soon
        return None

    def forget(self, block_ids_per_layer: list[list[int]]) -> None:
        """Drop the entries of these blocks, and all that follow them. Sessions keep theirs."""
        block_ids = {block_id for ids in block_ids_per_layer for block_id in ids}
        doomed: set[CachedBlock | None] = set()
        for entry in reversed(self.entries.values()):  # parents first
            if entry.block_id in block_ids or entry.parent in doomed:
                doomed.add(entry)
        for entry in [entry for entry in self if entry in doomed]:
            self._drop(entry)

    def clear(self) -> None:
        """Drop every entry. Sessions keep their blocks."""
        self.num_evicted += len(self.entries)
        while self.entries:
            self._drop(next(iter(self)))

    def is_in_use(self, entry: CachedBlock) -> bool:
        """Whether somebody else holds the entry's block."""
        return self._kv_manager.refcount(entry.block_id) > 1

    def _drop(self, entry: CachedBlock) -> None:
        del self.entries[entry.key], self._of_block[entry.block_id]
        if entry in self._last_found[1]:
            self._last_found = NOTHING_FOUND
        self._kv_manager.deallocate_block(entry.block_id)
