"""Block managers whose records are changed in place (write-up 064)."""

from torch import Tensor

from labkit.kvcache.block_info import MutableKVBlockInfo
from labkit.kvcache.block_manager import NO_BLOCK, KVBlockManager


class MutableInfoBlockManager(KVBlockManager):
    """A KVBlockManager whose records count up in place: no new record and no dictionary write per token.

    They are counted up here, and by a batch that goes on (rung 10).
    """

    info_type = MutableKVBlockInfo
    watch_points = ("reserve_token_batch", "reserve_prompt")
    block_infos: dict[int, MutableKVBlockInfo]

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
        self.write_batch(layer_idx, range(len(last_infos)), block_idx, pos, key_new, value_new)
        self.append_paths["in_place"] += len(last_infos) - num_slow
        for info in last_infos:  # after the write: a length is never ahead of the data
            info.length += 1

    def reserve_token_batch(self, table_idx: int, block_ids_list: list[list[int]]) -> list[int]:
        """Make room for one more token behind each of B sequences, and count it, before anything is written.

        Returns which of the lists changed. Raises OutOfBlocksError when no block is free; what was counted
        until then stays, so `truncate` after.
        """
        infos, refcounts = self.block_infos, self.block_refcounts
        changed = []
        for b, block_ids in enumerate(block_ids_list):
            last_id = block_ids[-1] if block_ids else NO_BLOCK
            info = infos.get(last_id)
            if info is None or info.length == self.block_size or refcounts[last_id] > 1:
                last_id = self.ready_block(table_idx, block_ids)
                info = infos[last_id]
                changed.append(b)
            info.length += 1
        self.append_paths["in_place"] += len(block_ids_list) - len(changed)
        return changed

    def reserve_prompt(self, table_idx: int, block_ids: list[int], num_tokens: int) -> None:
        """Make room for `num_tokens` more tokens behind a sequence, and count them, before any is written. A
        shared, partly filled last block is copied first.

        Raises OutOfBlocksError when no block is free; what was counted until then stays, so `truncate` after.
        """
        while num_tokens:
            last_id, _ = self._writable_last_block(table_idx, block_ids)
            info = self.block_infos[last_id]
            count = min(self.block_size - info.length, num_tokens)
            info.length += count
            num_tokens -= count

    def set_length(self, block_id: int, length: int) -> None:
        """Record that a block holds `length` tokens."""
        self.block_infos[block_id].length = length


class OneTableBlockManager(MutableInfoBlockManager):
    """A block manager with one table for all layers: a block id names the same place in every layer's pool
    (rung 07).

    A sequence has one list of block ids, and blocks are counted, shared and copied once, for all layers.
    """

    @staticmethod
    def count_tables(num_layers: int) -> int:
        """How many lists of block ids a sequence has: one for all layers."""
        return 1

    def layers_of(self, table_idx: int) -> slice:
        """The layers whose blocks one table names, as an index into the pool's first dimension: all."""
        return slice(None)
