"""Lesson 14: caches of blocks that are wrong, each in one thing, and where that shows."""

from collections.abc import Sequence

from labkit.engine import InferenceEngine, SamplingParams
from labkit.kvcache import CachedBlock
from labkit.learn.lesson_14.block_cache import BlockCache


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


# --- where it shows --------------------------------------------------------------------------------------


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
