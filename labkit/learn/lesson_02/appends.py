"""Lesson 02: an append that is wrong on purpose."""

from torch import Tensor

from labkit.kvcache import AppendBatched
from labkit.watch import replaced


class CopiesAfterTheWrite(AppendBatched):
    """An append that is wrong on purpose: the record of a copy-on-write is made at once, but its keys and
    values are moved after the write."""

    def append_layer(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        """Write one layer's tokens, all in one write, and then make the copies."""
        manager, late = self.kv_manager, []

        def put_off(layer_idx: int, block_id: int) -> int:
            old = manager.info(block_id)
            new_id = manager.allocate_block(layer_idx, start=old.start)
            manager.set_length(new_id, old.length)
            manager.deallocate_block(block_id)
            late.append((old.block_index, manager.info(new_id).block_index))
            return new_id

        with replaced(manager, "copy_on_write", lambda _: put_off):
            super().append_layer(layer_idx, block_ids_list, key_new, value_new)
        for source, target in late:
            for cache in (manager.k_cache, manager.v_cache):
                cache[layer_idx, target] = cache[layer_idx, source]
