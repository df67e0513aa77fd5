"""Lesson 05: managers that are wrong on purpose, and what a failure leaves behind."""

from contextlib import suppress

from torch import Tensor

from labkit.kvcache import KVBlockManager, MutableInfoBlockManager
from labkit.kvcache.block_manager import NO_BLOCK
from labkit.learn.lesson_05.work import append, tiny_manager
from labkit.watch import PlantedError, planted_failure


class SharesTheRecord(MutableInfoBlockManager):
    """A manager that is wrong on purpose: a copy of a block takes over the record of the block that it was
    copied from, and two blocks have one record."""

    def copy_on_write(self, layer_idx: int, block_id: int) -> int:
        info = self.block_infos[block_id]
        new_id = super().copy_on_write(layer_idx, block_id)
        info.block_index = self.block_infos[new_id].block_index
        self.block_infos[new_id] = info
        return new_id


class CountsBeforeTheWrite(MutableInfoBlockManager):
    """A manager that counts a length up while it collects, before the write, as write-up 064 does; for
    demonstration."""

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        infos, refcounts = self.block_infos, self.block_refcounts
        last_infos, block_idx, pos = [], [], []
        num_slow = 0
        for block_ids in block_ids_list:
            last_id = block_ids[-1] if block_ids else NO_BLOCK
            info = infos.get(last_id)
            if info is None or info.length == self.block_size or refcounts[last_id] > 1:
                last_id = self.ready_block(layer_idx, block_ids)
                info = infos[last_id]
                num_slow += 1
            last_infos.append(info)
            block_idx.append(info.block_index)
            pos.append(info.length)
            info.length += 1  # before the write
        self.write_batch(layer_idx, range(len(last_infos)), block_idx, pos, key_new, value_new)
        self.append_paths["in_place"] += len(last_infos) - num_slow


LEFT_BEHIND = 99.0  # what another request's token left in a slot


def stored_after_retry(kind: type[KVBlockManager]) -> list[float]:
    """The keys that a sequence reads after tokens 1 and 2, a write of 3 that fails, and 3 once more, with no
    clean-up between them."""
    manager = tiny_manager(kind)
    manager.k_cache.fill_(LEFT_BEHIND)
    block_ids: list[int] = []
    append(manager, [block_ids], 1.0)
    append(manager, [block_ids], 2.0)
    with suppress(PlantedError), planted_failure(manager.kv_write, "write"):
        append(manager, [block_ids], 3.0)
    append(manager, [block_ids], 3.0)
    return manager.dense_kv(0, block_ids)[0].flatten().tolist()
