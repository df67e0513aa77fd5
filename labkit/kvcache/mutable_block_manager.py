"""The manager with records that are changed in place (seed 064)."""

from torch import Tensor

from labkit.kvcache.block_info import MutableKVBlockInfo
from labkit.kvcache.block_manager import KVBlockManager


class MutableInfoBlockManager(KVBlockManager):
    """A KVBlockManager whose records count up: no new record and no dictionary write for a token."""

    info_type = MutableKVBlockInfo
    watch_points = ("reserve_token_batch",)

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        infos, refcounts = self.block_infos, self.block_refcounts
        last_infos, block_idx, pos = [], [], []
        num_slow = 0
        for block_ids in block_ids_list:
            last_id = block_ids[-1] if block_ids else None
            info = infos.get(last_id)
            if info is None or info.length == self.block_size or refcounts[last_id] > 1:
                last_id = self.ready_block(layer_idx, block_ids)
                info = infos[last_id]
                num_slow += 1
            last_infos.append(info)
            block_idx.append(info.block_index)
            pos.append(info.length)
        self.write_batch(layer_idx, range(len(last_infos)), block_idx, pos, key_new, value_new)
        self.append_paths["in_place"] += len(last_infos) - num_slow
        for info in last_infos:  # after the write: a length is never ahead of the data
            info.length += 1

    def reserve_token_batch(self, table_idx: int, block_ids_list: list[list[int]]) -> list[int]:
        """Make room for one more token behind each of B sequences, and count it, before anything is written.

        Which of the lists changed. Raises OutOfBlocksError when no block is free; what was counted until
        then stays, so `truncate` after.
        """
        infos, refcounts = self.block_infos, self.block_refcounts
        changed = []
        for b, block_ids in enumerate(block_ids_list):
            last_id = block_ids[-1] if block_ids else None
            info = infos.get(last_id)
            if info is None or info.length == self.block_size or refcounts[last_id] > 1:
                last_id = self.ready_block(table_idx, block_ids)
                info = infos[last_id]
                changed.append(b)
            info.length += 1
        self.append_paths["in_place"] += len(block_ids_list) - len(changed)
        return changed

    def set_length(self, block_id: int, length: int) -> None:
        """Book that a block holds `length` tokens."""
        self.block_infos[block_id].length = length


class OneTableBlockManager(MutableInfoBlockManager):
    """One table for all layers: a block id names the same place in every layer's pool (rung 07).

    A sequence has one list of block ids, and what is booked, shared and copied is booked, shared and
    copied once, for all layers.
    """

    @staticmethod
    def count_tables(num_layers: int) -> int:
        return 1

    def layers_of(self, table_idx: int) -> slice:
        return slice(None)
