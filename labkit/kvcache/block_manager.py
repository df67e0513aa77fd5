"""Memory for keys and values, handed out in blocks of tokens (PagedAttention, Kwon et al., 2023).

Shapes: L layers, N blocks per layer, H heads, D head size, T tokens. Every layer has its own blocks; a
block's global id is layer * max_blocks_per_layer + block_index. (Not so on rung 07 and above: see
`OneTableBlockManager`.)
"""

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from labkit.kernels.eight_bit import bytes_of_head, read_heads, write_heads
from labkit.kvcache.block_books import BlockBooks
from labkit.kvcache.block_info import KVBlockInfo
from labkit.kvcache.kv_write import IndexedWrite, KVWrite

NO_BLOCK = -1  # where a sequence has no last block; never a block's id


def zero_bytes(shape: Sequence[int], device: torch.device) -> Tensor:
    """Bytes of zeros; on a CPU the system gives their memory page by page, when it is first used."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=torch.uint8)
    return torch.from_numpy(np.zeros(shape, np.uint8))


class KVBlockManager(BlockBooks):
    """The KV pool, with its books: tokens are appended to sequences, which are lists of block ids.

    `k_cache` and `v_cache` are [L, N, H, block_size, D], in 8 bits with scales behind them: see `eight_bit`.
    A command that finds no free block raises, and one for a single token has changed nothing by then; what
    one for several has appended until then, or an append whose write fails, is undone by `truncate`.
    """

    watch_points: ClassVar[tuple[str, ...]] = (
        *("copy_on_write", "append_token", "append_token_batch", "append_prompt", "write_batch"),
    )

    def __init__(
        self,
        *,
        num_layers: int,
        num_heads: int,
        head_dim: int,
        block_size: int,
        max_blocks_per_layer: int,
        max_blocks_per_seq: int | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        cache_dtype: torch.dtype | None = None,
        kv_write: KVWrite | None = None,
    ) -> None:
        """Allocate the pool, filled with zeros, with every block free.

        num_heads: of keys and values, in each layer. dtype: in which they come, and in which the pool keeps
        them unless cache_dtype is one of 8 bits.
        max_blocks_per_seq: blocks of the longest possible sequence, by default all blocks of a layer.
        kv_write: how `append_token_batch` writes, by default by indexed assignment.
        """
        super().__init__(num_layers, block_size, max_blocks_per_layer)
        self.max_blocks_per_seq = max_blocks_per_seq or max_blocks_per_layer
        self.kv_write = kv_write or IndexedWrite(torch.device(device))
        self.dtype = dtype
        kept = cache_dtype or dtype
        shape = (num_layers, max_blocks_per_layer, num_heads, bytes_of_head(block_size, head_dim, kept))
        self._pool = zero_bytes((2, *shape), torch.device(device))
        self.k_cache, self.v_cache = (
            pool.view(kept)[..., : block_size * head_dim].unflatten(-1, (block_size, head_dim))
            for pool in self._pool
        )
        # Appended tokens by how their block was made ready, and batches by how they were written.
        self.append_paths: Counter[str] = Counter()

    # --- queries -----------------------------------------------------------------------------------

    def live_slots(self) -> Tensor:
        """Which slots hold a token: [L, N, block_size], True or False."""
        live = torch.zeros((*self.k_cache.shape[:2], self.block_size), dtype=torch.bool)
        for info in self.block_infos.values():
            live[self.layers_of(info.layer), info.block_index, : info.length] = True
        return live.to(self.k_cache.device)

    def dense_kv(self, layer_idx: int, block_ids: list[int]) -> tuple[Tensor, Tensor]:
        """The keys and values of a sequence in one piece, each [H, T, D] (a copy)."""
        indices = torch.tensor(
            [self.block_infos[i].block_index for i in block_ids], device=self.k_cache.device
        )
        num_tokens = self.num_tokens(block_ids)
        keys, values = (
            read_heads(cache[layer_idx], indices.long(), self.dtype)
            .transpose(0, 1)
            .flatten(1, 2)[:, :num_tokens]
            for cache in (self.k_cache, self.v_cache)
        )
        return keys, values

    # --- commands ----------------------------------------------------------------------------------

    def append_token(self, layer_idx: int, block_ids: list[int], key_new: Tensor, value_new: Tensor) -> None:
        """Write one token's key and value, each [H, D], at the end of a sequence.

        Raises OutOfBlocksError, with nothing changed, if that needs a new block and none is free.
        """
        last_id = self.ready_block(layer_idx, block_ids)
        info = self.block_infos[last_id]
        place = (layer_idx, info.block_index, slice(None), info.length)
        write_heads(self.k_cache, place, key_new)
        write_heads(self.v_cache, place, value_new)
        self.set_length(last_id, info.length + 1)

    def append_token_batch_fast_path(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        """Write one token's key and value, [B, H, D], behind each of B sequences: in one write where the
        last block has room and one holder, by `append_token` elsewhere (write-up 038).

        Raises OutOfBlocksError when no block is free; what was written until then stays, so ask
        `append_takes_block` first or `truncate` after.
        """
        infos, refcounts = self.block_infos, self.block_refcounts
        fast_batch_idx, fast_block_idx, fast_pos, fast_last_ids = [], [], [], []
        slow_batch_idx = []
        for b, block_ids in enumerate(block_ids_list):
            last_id = block_ids[-1] if block_ids else NO_BLOCK
            info = infos.get(last_id)
            if info is None or info.length == self.block_size or refcounts[last_id] > 1:
                slow_batch_idx.append(b)
                continue
            fast_batch_idx.append(b)
            fast_block_idx.append(info.block_index)
            fast_pos.append(info.length)
            fast_last_ids.append(last_id)
        if fast_batch_idx:
            self.write_batch(layer_idx, fast_batch_idx, fast_block_idx, fast_pos, key_new, value_new)
            self.append_paths["in_place"] += len(fast_batch_idx)
        for last_id in fast_last_ids:
            self.set_length(last_id, infos[last_id].length + 1)
        for b in slow_batch_idx:
            self.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        """Write one token's key and value, [B, H, D], behind each of B sequences, all in one write: first
        every block is made ready, copies included, then all tokens are written. The last holder of a block
        that others copied writes in place, after the copies.

        Raises OutOfBlocksError when no block is free: nothing is written then, and `truncate` gives back
        the blocks that were made ready.
        """
        infos, refcounts = self.block_infos, self.block_refcounts
        last_ids, block_idx, pos = [], [], []
        num_slow = 0
        for block_ids in block_ids_list:
            last_id = block_ids[-1] if block_ids else NO_BLOCK
            info = infos.get(last_id)
            if info is None or info.length == self.block_size or refcounts[last_id] > 1:
                last_id = self.ready_block(layer_idx, block_ids)
                info = infos[last_id]
                num_slow += 1
            last_ids.append(last_id)
            block_idx.append(info.block_index)
            pos.append(info.length)
        self.write_batch(layer_idx, range(len(last_ids)), block_idx, pos, key_new, value_new)
        self.append_paths["in_place"] += len(last_ids) - num_slow
        for last_id in last_ids:  # after the write: a length is never ahead of the data
            info = infos[last_id]
            infos[last_id] = KVBlockInfo(
                layer=info.layer,
                block_index=info.block_index,
                start=info.start,
                length=info.length + 1,
            )

    def append_prompt(self, layer_idx: int, block_ids: list[int], keys: Tensor, values: Tensor) -> None:
        """Write many tokens' keys and values, each [H, T, D], behind a sequence, one block at a time.

        keys, values: [L, H, T, D] where a table serves all layers.

        Raises OutOfBlocksError when no block is free; what was written until then stays, so ask
        `num_free_blocks` first or `truncate` after.
        """
        num_tokens = keys.shape[-2]
        done = 0
        while done < num_tokens:
            last_id, _ = self._writable_last_block(layer_idx, block_ids)
            info = self.block_infos[last_id]
            count = min(self.block_size - info.length, num_tokens - done)
            slots = slice(info.length, info.length + count)
            place = (self.layers_of(layer_idx), info.block_index, slice(None), slots)
            write_heads(self.k_cache, place, keys[..., done : done + count, :])
            write_heads(self.v_cache, place, values[..., done : done + count, :])
            self.set_length(last_id, info.length + count)
            done += count

    # --- how a block is made ready, and written ----------------------------------------------------

    def ready_block(self, layer_idx: int, block_ids: list[int]) -> int:
        """The id of the block for the next token, made ready; how that was done is counted in
        append_paths."""
        last_id, path = self._writable_last_block(layer_idx, block_ids)
        self.append_paths[path] += 1
        return last_id

    def write_batch(
        self,
        layer_idx: int,
        batch_idx: Sequence[int],
        block_idx: list[int],
        pos: list[int],
        key_new: Tensor,
        value_new: Tensor,
    ) -> None:
        """Write rows `batch_idx` of keys and values [B, H, D] to slots `pos` of blocks `block_idx`."""
        path = self.kv_write.write(
            self.k_cache[layer_idx], self.v_cache[layer_idx], key_new, value_new, batch_idx, block_idx, pos
        )
        self.append_paths[path] += 1

    def _writable_last_block(self, layer_idx: int, block_ids: list[int]) -> tuple[int, str]:
        """The id of the block for the next token, with room and no other holder, and how it was made
        ready."""
        if not block_ids:
            block_ids.append(self.allocate_block(layer_idx, start=0))
            path = "first"
        elif (info := self.block_infos[block_ids[-1]]).length == self.block_size:
            block_ids.append(self.allocate_block(layer_idx, start=info.start + self.block_size))
            path = "boundary"
        elif self.block_refcounts[block_ids[-1]] > 1:
            block_ids[-1] = self.copy_on_write(layer_idx, block_ids[-1])
            path = "copy_on_write"
        else:
            path = "in_place"
        return block_ids[-1], path

    def copy_on_write(self, layer_idx: int, block_id: int) -> int:
        """A private copy of a shared block, which loses one holder."""
        old = self.block_infos[block_id]
        new_id = self.allocate_block(layer_idx, start=old.start)
        new_index = self.block_infos[new_id].block_index
        layers = self.layers_of(layer_idx)
        try:
            self._pool[:, layers, new_index] = self._pool[:, layers, old.block_index]
        except BaseException:
            self.deallocate_block(new_id)
            raise
        self.set_length(new_id, old.length)
        self.deallocate_block(block_id)
        return new_id
