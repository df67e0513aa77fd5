"""Lesson 14: what a reader's cache of blocks is made from, and caches that are wrong in one thing."""

from collections.abc import Iterable, Iterator, Sequence

from labkit.engine import InferenceEngine, SamplingParams
from labkit.kvcache import BlockPrefix, BlockPrefixCache, CachedBlock, KVBlockManager
from labkit.kvcache.block_prefix_cache import ROOT_KEY, chain_to


class BlockCache:
    """Entries by key, each of which holds its block once, and what any cache of blocks does with them. A
    subclass says what a block's key is, what is found and kept of a text, and what goes first."""

    watch_points = ("lookup", "insert", "evict_one")

    def __init__(self, kv_manager: KVBlockManager) -> None:
        self.kv_manager = kv_manager
        self.block_size = kv_manager.block_size
        self.entries: dict[int, CachedBlock] = {}  # by key, the least recently used first
        self.num_evicted = 0

    __len__, __iter__ = BlockPrefixCache.__len__, BlockPrefixCache.__iter__  # of its entries

    # --- decided by a subclass -------------------------------------------------------------------------

    block_key = BlockPrefixCache.block_key

    def find(self, token_ids: Sequence[int]) -> list[CachedBlock]:
        """The entries of the blocks that a text begins with; none of them has its last token."""
        found: list[CachedBlock] = []
        for key, block in self.blocks_of(token_ids[:-1]):
            entry, parent = self.entries.get(key), found[-1] if found else None
            if entry is None or entry.parent is not parent or entry.token_ids != block:
                break
            found.append(entry)
        return found

    def keep(self, token_ids: Sequence[int], block_ids: Sequence[int]) -> None:
        """Keep the full blocks of a text, each once. block_ids: where its tokens lie, in order."""
        parent = None
        for (key, block), block_id in zip(self.blocks_of(token_ids), block_ids, strict=False):
            if len(block) < self.block_size:
                return
            entry = self.entries.get(key) or self.add(key, parent, block, block_id)
            if entry.parent is not parent or entry.token_ids != block:
                return
            parent = entry

    def evict_one(self) -> bool:
        """Drop the least recently used entry that nobody else holds and that is no other's parent; False if
        there is none."""
        parents = {entry.parent for entry in self}
        for entry in self:
            if entry not in parents and self.num_holders(entry) == 1:
                self.drop(entry)
                return True
        return False

    # --- what it is made from --------------------------------------------------------------------------

    def blocks_of(self, token_ids: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The key and the token ids of each of a text's blocks. The last may have fewer than `block_size`."""
        key = ROOT_KEY
        for start in range(0, len(token_ids), self.block_size):
            block = tuple(token_ids[start : start + self.block_size])
            key = self.block_key(key, block)
            yield key, block

    def add(
        self, key: int, parent: CachedBlock | None, token_ids: tuple[int, ...], block_id: int
    ) -> CachedBlock:
        """A new entry under a key that has none. It holds the block from now on, beside who holds it now."""
        self.kv_manager.share([block_id])
        start = 0 if parent is None else parent.start + parent.num_tokens
        entry = self.entries[key] = CachedBlock(key, parent, token_ids, block_id, start)
        return entry

    def num_holders(self, entry: CachedBlock) -> int:
        """How many hold the entry's block: 1 if only this cache does."""
        return self.kv_manager.refcount(entry.block_id)

    def drop(self, entry: CachedBlock) -> None:
        """Take an entry out and let go of its block, which is free then if nobody else holds it."""
        del self.entries[entry.key]
        self.kv_manager.free([entry.block_id])
        self.num_evicted += 1

    # --- what the engine asks --------------------------------------------------------------------------

    def lookup(self, token_ids: Sequence[int]) -> BlockPrefix | None:
        """What `find` has found, which counts as used, as a session shares it; None if it is nothing."""
        found = self.find(token_ids)
        for entry in found:
            self.entries[entry.key] = self.entries.pop(entry.key)  # to the end
        num_tokens = sum(entry.num_tokens for entry in found)
        return BlockPrefix([[entry.block_id for entry in found]], num_tokens) if found else None

    def is_coming(self, token_ids: Sequence[int], computing: Iterable[Sequence[int]]) -> bool:
        """Whether the first block of this text that is not cached is one of a text that is being computed."""
        end = (len(self.find(token_ids)) + 1) * self.block_size
        begins = tuple(token_ids[:end])
        return end < len(token_ids) and any(tuple(other[:end]) == begins for other in computing)

    insert = BlockPrefixCache.insert  # as `keep_text`

    def keep_text(self, token_ids: Sequence[int], block_ids_per_layer: list[list[int]]) -> None:
        """Keep a text, as `keep` does."""
        (block_ids,) = block_ids_per_layer  # one table serves all layers
        self.keep(token_ids, block_ids)

    def can_free(self, num_blocks: int) -> bool:
        """Whether so many entries could go: nobody else holds their block, nor any that follows it."""
        in_use = {used for entry in self if self.num_holders(entry) > 1 for used in chain_to(entry)}
        return len(set(self) - in_use) >= num_blocks

    def forget(self, block_ids_per_layer: list[list[int]]) -> None:
        """Drop the entries of these blocks, and all that follow them."""
        block_ids = {block_id for ids in block_ids_per_layer for block_id in ids}
        for entry in list(self):
            if any(used.block_id in block_ids for used in chain_to(entry)):
                self.drop(entry)

    def clear(self) -> bool:
        """Drop every entry; whether there was one."""
        entries = list(self)
        for entry in entries:
            self.drop(entry)
        return bool(entries)


# --- broken in one thing -------------------------------------------------------------------------------


class TrustsTheKey(BlockCache):
    """Compares nothing: if keys collide, two texts are mixed."""

    def find(self, token_ids: Sequence[int]) -> list[CachedBlock]:
        found: list[CachedBlock] = []
        for key, block in self.blocks_of(token_ids[:-1]):
            if key not in self.entries or len(block) < self.block_size:
                break
            found.append(self.entries[key])
        return found


class KeepsTheLast(BlockCache):
    """Keeps the last block of a text, too, which is not full."""

    def keep(self, token_ids: Sequence[int], block_ids: Sequence[int]) -> None:
        parent = None
        for (key, block), block_id in zip(self.blocks_of(token_ids), block_ids, strict=False):
            entry = self.entries.get(key) or self.add(key, parent, block, block_id)
            if entry.parent is not parent or entry.token_ids != block:
                return
            parent = entry


class ParentsFirst(BlockCache):
    """Evicts the least recently used block, whatever follows it."""

    def evict_one(self) -> bool:
        for entry in self:
            if self.num_holders(entry) == 1:
                self.drop(entry)
                return True
        return False


class TakesWhatIsUsed(BlockCache):
    """Evicts a block although a request holds it."""

    def num_holders(self, entry: CachedBlock) -> int:
        return 1


ALL = (TrustsTheKey, KeepsTheLast, ParentsFirst, TakesWhatIsUsed)


def with_keys_by_place(part: type[BlockCache]) -> type[BlockCache]:
    """The same cache with a poor hash: a block's key is its number in its text, so that all texts collide."""

    class KeysByPlace(part):
        def block_key(self, parent_key: int, token_ids: tuple[int, ...]) -> int:
            return parent_key + 1

    return KeysByPlace


def last_text(engine: InferenceEngine, prompts: Sequence[Sequence[int]], num_new: int) -> str:
    """The answer to the last of several prompts, each asked when the one before has ended."""
    for prompt in prompts:
        (completion,) = engine.generate([prompt], SamplingParams(num_new, stop_on_eos=False))
    return completion.text
