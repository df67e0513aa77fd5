"""A sequence's place in the KV cache."""

import torch
from torch import Tensor

from labkit.kvcache import KVBlockManager, PrefixEntry


class InferenceSession:
    """The blocks of one running sequence, a list of ids a layer, and how many tokens they hold."""

    def __init__(self, kv_manager: KVBlockManager, prefix: PrefixEntry | None = None) -> None:
        """An empty session, or one that begins with the shared blocks of a cached prompt."""
        self.kv_manager = kv_manager
        self.block_ids_per_layer: list[list[int]] = [[] for _ in range(kv_manager.num_layers)]
        self.num_tokens = 0
        if prefix is not None:
            self._share(prefix.block_ids_per_layer, prefix.num_tokens)

    def _share(self, block_ids_per_layer: list[list[int]], num_tokens: int) -> None:
        self.block_ids_per_layer = [self.kv_manager.share(block_ids) for block_ids in block_ids_per_layer]
        self.num_tokens = num_tokens

    def fork(self) -> "InferenceSession":
        """A second session on the same blocks; the first to append copies the last one."""
        child = InferenceSession(self.kv_manager)
        child._share(self.block_ids_per_layer, self.num_tokens)
        return child

    @property
    def next_token_takes_block(self) -> bool:
        # All layers move in step, so the first speaks for all.
        return self.kv_manager.append_takes_block(self.block_ids_per_layer[0])

    def blocks_to_reach(self, num_tokens: int) -> int:
        """Free blocks, in each layer, that growing to `num_tokens` takes."""
        copies_last = num_tokens > self.num_tokens and self._last_is_shared_and_partial()
        return self.new_blocks_to_reach(num_tokens) + copies_last

    def new_blocks_to_reach(self, num_tokens: int) -> int:
        """The same without the copy of a shared last block."""
        return self.kv_manager.blocks_for(num_tokens) - len(self.block_ids_per_layer[0])

    def _last_is_shared_and_partial(self) -> bool:
        return self.num_tokens % self.kv_manager.block_size > 0 and self.next_token_takes_block

    def append_prompt(self, keys: Tensor, values: Tensor) -> None:
        """Store the keys and values [L, H, T, D] of T tokens."""
        for layer_idx, block_ids in enumerate(self.block_ids_per_layer):
            self.kv_manager.append_prompt(layer_idx, block_ids, keys[layer_idx], values[layer_idx])
        self.num_tokens += keys.shape[2]

    def dense_kv(self) -> tuple[Tensor, Tensor]:
        """All keys and all values, each [L, H, T, D] (a copy)."""
        layers = [
            self.kv_manager.dense_kv(i, block_ids) for i, block_ids in enumerate(self.block_ids_per_layer)
        ]
        return torch.stack([k for k, _ in layers]), torch.stack([v for _, v in layers])

    def roll_back(self) -> None:
        """Forget whatever a failed step appended after the last token counted."""
        for block_ids in self.block_ids_per_layer:
            self.kv_manager.truncate(block_ids, self.num_tokens)

    def release(self) -> None:
        """Give all blocks back."""
        for block_ids in self.block_ids_per_layer:
            self.kv_manager.free(block_ids)
        self.num_tokens = 0
