"""Attention in a device-resident step, with the write of the new keys and values (rung 06 and above)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from labkit.engine.step.slots import DeviceSlots
from labkit.kernels import (
    HeadTransform,
    PagedAttentionAppend,
    PagedAttentionFunction,
    SharePlan,
    SplitWorkspace,
    num_splits,
    paged_attention_append_shares_triton,
    paged_attention_append_split_triton,
    plan_shares_triton,
)
from labkit.kernels.grouped_attention import group_programs
from labkit.kvcache import KVBlockManager, MutableInfoBlockManager


@dataclass(eq=False, repr=False)
class AttendThenWrite:
    """Paged attention, then a K/V write: two kernels that read index tensors made on the device (rung 06)."""

    path = "identity_pos"  # the name that its writes are counted by
    watch_points = ("attention", "kv_append")

    kv_manager: MutableInfoBlockManager
    attention: PagedAttentionFunction
    kv_append: Callable[..., None]  # `kv_append_triton_identity_pos` or its plain twin

    def begin(self, slots: DeviceSlots, slot_mapping: Tensor, max_context_len: int) -> None:
        """Gather the step's block tables, lengths and write positions from the slots, for all layers."""
        self._block_tables = slots.block_tables[:, slot_mapping]  # [T, B, M]
        self._context_lens = slots.context_lens[slot_mapping]  # [B]
        self._max_context_len = max_context_len
        place = (self._context_lens // self.kv_manager.block_size).long()  # of the new token, in its row
        self._pos = self._context_lens % self.kv_manager.block_size  # [B]
        place = place.expand(len(self._block_tables), -1)[:, :, None]
        self._block_idx = self._block_tables.gather(2, place)[:, :, 0]  # [T, B]

    def __call__(self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = query[:, :, 0], key[:, :, 0], value[:, :, 0]  # [B, .., 1, D] -> [B, .., D]
        k_cache, v_cache = self.kv_manager.k_cache[layer_idx], self.kv_manager.v_cache[layer_idx]
        table_idx = layer_idx % len(self._block_tables)
        out = self.attention(
            query,
            key,
            value,
            k_cache,
            v_cache,
            self._block_tables[table_idx],
            self._context_lens,
            self._max_context_len,
        )
        self.kv_append(k_cache, v_cache, key, value, self._block_idx[table_idx], self._pos)
        return out[:, :, None]


class AttendAndWrite:
    """Paged attention and K/V write in one kernel, which reads the slots themselves (rung 07)."""

    path = "fused"
    watch_points = ("attention",)

    def __init__(self, kv_manager: MutableInfoBlockManager, attention: PagedAttentionAppend) -> None:
        self.kv_manager = kv_manager
        self.attention = attention
        self._plan = attention.plan if isinstance(attention, SharedAttention) else None

    def begin(self, slots: DeviceSlots, slot_mapping: Tensor, max_context_len: int) -> None:
        """Keep the slots and their mapping for the step's kernels, which look up all else themselves, and
        have an attention that plans a step make its plan."""
        self._slots, self._slot_mapping, self._max_context_len = slots, slot_mapping, max_context_len
        if self._plan is not None:
            plan_shares_triton(slots.context_lens, slot_mapping, self._plan)

    def __call__(self, layer_idx: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = query[:, :, 0], key[:, :, 0], value[:, :, 0]  # [B, .., 1, D] -> [B, .., D]
        return self.attend_heads(layer_idx, query, key, value)[:, :, None]

    def attend_heads(
        self,
        layer_idx: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        transform: HeadTransform | None = None,
    ) -> Tensor:
        """Attend in one layer and write its new keys and values.

        query: [B, H, D], as is the result; key, value: [B, G, D]. transform: of queries and keys, before all.
        """
        slots = self._slots
        return self.attention(
            query,
            key,
            value,
            self.kv_manager.k_cache[layer_idx],
            self.kv_manager.v_cache[layer_idx],
            slots.block_tables[layer_idx % len(slots.block_tables)],
            slots.context_lens,
            self._slot_mapping,
            self._max_context_len,
            *([] if transform is None else [transform]),
        )


# Attends in one layer at a time and stores its new keys and values in the cache.
LayerAttention = AttendThenWrite | AttendAndWrite


class SplitAttention:
    """Paged attention with each request's tokens split among as many programs as fill the GPU (rung 09).

    It is `paged_attention_append_split_triton` with a workspace of its own.
    """

    def __init__(self, kv_manager: KVBlockManager, max_batch_size: int, num_heads: int) -> None:
        """num_heads: of queries."""
        block_size, head_dim = kv_manager.k_cache.shape[3:]
        device = kv_manager.k_cache.device
        self._workspace = SplitWorkspace(max_batch_size, num_heads, head_dim, device)
        # Of the longest possible sequence: a graph cannot ask how long they are.
        self._max_tokens = kv_manager.max_blocks_per_seq * block_size

    def __call__(self, query: Tensor, key_new: Tensor, *others: Any) -> Tensor:
        """What a `PagedAttentionAppend` does, with its arguments; a transform may follow them."""
        B, G, _ = key_new.shape
        num_warps = group_programs(B, query.shape[1], G, query.dtype).num_warps
        # These come in the place of max_context_len.
        own = self._workspace, num_splits(B, G, self._max_tokens, num_warps)
        arguments: list[Any] = [query, key_new, *others[:6], *own, *others[7:]]
        return paged_attention_append_split_triton(*arguments)


class SharedAttention:
    """Paged attention with programs for equal shares of the batch's tokens, however long each request is
    (rung 13).

    It is `paged_attention_append_shares_triton` with a workspace and a plan of its own. Whoever calls it has
    `plan_shares_triton` write the plan before a step's first layer.
    """

    def __init__(self, kv_manager: KVBlockManager, max_batch_size: int, num_heads: int) -> None:
        """num_heads: of queries."""
        cache = kv_manager.k_cache
        _, _, G, block_size, D = cache.shape
        group = num_heads // G
        self.plan = SharePlan(max_batch_size, G, D, cache.dtype, cache.device, group, block_size)
        num_shares = len(self.plan.row_of)
        self._workspace = SplitWorkspace(max_batch_size, num_heads, D, cache.device, num_shares)

    def __call__(self, *asked: Any) -> Tensor:
        """What a `PagedAttentionAppend` does, with its arguments; a transform may follow them."""
        # Workspace and plan come in the place of max_context_len.
        arguments: list[Any] = [*asked[:8], self._workspace, self.plan, *asked[9:]]
        return paged_attention_append_shares_triton(*arguments)
