"""How a decode step's new keys and values reach the cache: by one call per layer, or one per token."""

from collections.abc import Sequence

from torch import Tensor

from labkit.kvcache.block_books import BlockHolder
from labkit.kvcache.block_manager import KVBlockManager


class AppendPerToken:
    """One `append_token` for each layer and request: L * B calls per step (the state before write-up 038)."""

    watch_points = ("append",)

    def __init__(self, kv_manager: KVBlockManager) -> None:
        self._kv_manager = kv_manager

    def append(
        self, sessions: Sequence[BlockHolder], keys: Sequence[Tensor], values: Sequence[Tensor]
    ) -> None:
        """Write one token per session: keys and values hold, for each layer, [B, H, D]."""
        for layer_idx in range(self._kv_manager.num_layers):
            for b, session in enumerate(sessions):
                self._kv_manager.append_token(
                    layer_idx,
                    session.block_ids_per_layer[layer_idx],
                    keys[layer_idx][b],
                    values[layer_idx][b],
                )


class LayerAppend:
    """A step's keys and values are handed on layer by layer, each with the batch's lists of blocks.

    A subclass says by `append_layer` how one layer's are appended.
    """

    watch_points = ("append",)

    def __init__(self, kv_manager: KVBlockManager) -> None:
        self.kv_manager = kv_manager

    def append(
        self, sessions: Sequence[BlockHolder], keys: Sequence[Tensor], values: Sequence[Tensor]
    ) -> None:
        """Write one token per session: keys and values hold, for each layer, [B, H, D]."""
        for layer_idx in range(self.kv_manager.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_layer(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_layer(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        """Write one token's key and value, [B, H, D], behind each of B sequences of one layer."""
        raise NotImplementedError


class AppendBatchedFastPath(LayerAppend):
    """One call per layer, and one more for each token that needs a block made ready (write-up 038)."""

    def append_layer(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        """Write one layer's tokens, together where the last block has room and one holder."""
        self.kv_manager.append_token_batch_fast_path(layer_idx, block_ids_list, key_new, value_new)


class AppendBatched(LayerAppend):
    """One call per layer, also where tokens need blocks made ready."""

    def append_layer(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        """Write one layer's tokens, all in one write."""
        self.kv_manager.append_token_batch(layer_idx, block_ids_list, key_new, value_new)


# Appends the new keys and values of a whole decode step, all layers and requests. Each raises
# OutOfBlocksError when no block is free.
KVAppend = AppendPerToken | LayerAppend
