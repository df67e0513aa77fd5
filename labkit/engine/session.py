"""A sequence's place in the KV cache."""

import torch
from torch import Tensor

from labkit.kvcache import KVBlockManager, MutableInfoBlockManager, Prefix


class InferenceSession:
    """A running sequence's place in the KV cache: its blocks and how many tokens they hold.

    block_ids_per_layer: a list of block ids per layer, or a single list where one table serves all layers.
    """

    watch_points = ("append_prompt", "reserve_prompt")
    start = 0  # the position of its first token

    def __init__(self, kv_manager: KVBlockManager, prefix: "Prefix | InferenceSession | None" = None) -> None:
        """An empty session, or one that begins with the blocks of a prefix, which are shared from then on."""
        self.kv_manager = kv_manager
        self.block_ids_per_layer: list[list[int]] = [[] for _ in range(kv_manager.num_tables)]
        self.num_tokens = 0
        self._paged_block_table_rows_cpu: tuple[Tensor, ...] | None = None  # [M] each, made when asked for
        self._paged_block_table_sigs: list[tuple[int, int] | None] = [None] * kv_manager.num_layers
        if prefix is not None:
            self.block_ids_per_layer = [
                kv_manager.share(block_ids) for block_ids in prefix.block_ids_per_layer
            ]
            self.num_tokens = prefix.num_tokens

    def fork(self) -> "InferenceSession":
        """A second session on the same blocks; the first to append copies a partly filled last one."""
        return InferenceSession(self.kv_manager, self)

    @property
    def next_token_takes_block(self) -> bool:
        """Whether one more token needs a free block in each layer: a new one, or a copy of a shared one."""
        # All layers grow together, so the first speaks for all.
        return self.kv_manager.append_takes_block(self.block_ids_per_layer[0])

    def blocks_to_reach(self, num_tokens: int) -> int:
        """Free blocks, in each layer, that growing to `num_tokens` takes."""
        return self.new_blocks_to_reach(num_tokens) + self.copies_last(num_tokens)

    def new_blocks_to_reach(self, num_tokens: int) -> int:
        """Free blocks, in each layer, that growing to `num_tokens` takes if the last block is not shared."""
        return self.kv_manager.blocks_for(num_tokens) - len(self.block_ids_per_layer[0])

    def copies_last(self, num_tokens: int) -> bool:
        """Whether growing to `num_tokens` copies the last block, which is shared and partly filled."""
        return (
            num_tokens > self.num_tokens
            and self.num_tokens % self.kv_manager.block_size > 0
            and self.next_token_takes_block
        )

    def append_prompt(self, keys: Tensor, values: Tensor) -> None:
        """Append the keys and values [L, H, T, D] of T tokens.

        Raises OutOfBlocksError when a layer has no free block; `roll_back` or `release` then undoes it.
        """
        for table_idx, block_ids in enumerate(self.block_ids_per_layer):
            layers = self.kv_manager.layers_of(table_idx)
            self.kv_manager.append_prompt(table_idx, block_ids, keys[layers], values[layers])
        self.num_tokens += keys.shape[2]

    def reserve_prompt(self, num_tokens: int) -> None:
        """Make room for `num_tokens` more tokens, and count them, before any is written (rung 13).

        Raises OutOfBlocksError when a table has no free block; `roll_back` or `release` then undoes it.
        """
        assert isinstance(self.kv_manager, MutableInfoBlockManager), "NEEDS asks for block_info = 'mutable'"
        for table_idx, block_ids in enumerate(self.block_ids_per_layer):
            self.kv_manager.reserve_prompt(table_idx, block_ids, num_tokens)
        self.num_tokens += num_tokens

    def dense_kv(self) -> tuple[Tensor, Tensor]:
        """The keys and the values of all T tokens, each [L, H, T, D] (a copy)."""
        num_layers, per_layer = self.kv_manager.num_layers, self.block_ids_per_layer
        layers = [self.kv_manager.dense_kv(i, per_layer[i % len(per_layer)]) for i in range(num_layers)]
        return torch.stack([k for k, _ in layers]), torch.stack([v for _, v in layers])

    def get_paged_block_table_row_cpu(self, *, layer_idx: int, offset: int) -> Tensor:
        """The layer's row of the block table, [M] int32 on the CPU, padded with 0 (write-up 036).

        offset: the global id of the layer's block 0. The row is kept, and made anew when its signature has
        changed: the number of blocks, and the last one's id. That is enough because a session's list only
        grows at its end, or has its last id replaced by another block's, between two calls.
        """
        block_ids = self.block_ids_per_layer[layer_idx]
        signature = (len(block_ids), block_ids[-1] if block_ids else -1)
        if self._paged_block_table_rows_cpu is None:
            shape = (self.kv_manager.num_layers, self.kv_manager.max_blocks_per_seq)
            self._paged_block_table_rows_cpu = torch.zeros(shape, dtype=torch.int32).unbind()
        row = self._paged_block_table_rows_cpu[layer_idx]
        if signature != self._paged_block_table_sigs[layer_idx]:
            row.zero_()
            physical = [block_id - offset for block_id in block_ids]
            row[: len(physical)] = torch.tensor(physical, dtype=torch.int32)
            self._paged_block_table_sigs[layer_idx] = signature
        return row

    def roll_back(self) -> None:
        """Free whatever a failed step appended behind the `num_tokens` tokens counted."""
        for block_ids in self.block_ids_per_layer:
            self.kv_manager.truncate(block_ids, self.num_tokens)
        self._forget_rows()

    def _forget_rows(self) -> None:
        """A list that shrank may grow again to the same signature with other blocks in the middle."""
        self._paged_block_table_sigs = [None] * self.kv_manager.num_layers

    def release(self) -> None:
        """Free all blocks; the session is empty after it."""
        for block_ids in self.block_ids_per_layer:
            self.kv_manager.free(block_ids)
        self._forget_rows()
        self.num_tokens = 0
