"""All layers of a fused step in one kernel, for a single row."""

from torch import Tensor

from labkit.engine.step.attention import SharedAttention, SplitAttention
from labkit.engine.step.fused import FusedDeviceStep
from labkit.kernels import paged_attention_append_plain
from labkit.kernels.layer_table import LayerTable
from labkit.kernels.persistent_layers import (
    decode_layers_persistent_triton,
    decode_layers_plain,
    make_barrier,
)

WIDEST = 768  # numbers of a row: of wider layers more weights may not fit in registers, and none was measured


class PersistentLayers:
    """The layers of a `FusedDeviceStep` in one kernel, with that step's weights, slots and cache.

    For batches of one row: with more, five kernels a layer take less time (data/latency_variants_h200.json,
    part `few_rows`). And for one step at a time: it has one barrier.
    """

    @staticmethod
    def fits(step: FusedDeviceStep) -> bool:
        """Whether the kernel does what the step does, and was measured for layers as wide.

        It has attention in it, so a step with an attention of the caller's has to launch that. And it knows
        LayerNorms alone, heads that each have a key, and layers of which no other rank has a part.
        """
        attention = step.attention.attention
        is_ours = attention is paged_attention_append_plain or isinstance(
            attention, SplitAttention | SharedAttention
        )
        qkv = step.layers[0].qkv
        is_whole = step.network.ranks.size == 1
        return is_ours and is_whole and qkv.column_sums is not None and qkv.weight.shape[1] <= WIDEST

    def __init__(self, step: FusedDeviceStep) -> None:
        """In a Triton kernel if the step's kernels are, else in its plain form. Raises ValueError for weights
        that the kernel cannot read."""
        on_triton = step.kernels.measured is not None
        self._slots, self._kv_manager = step.slots, step.attention.kv_manager
        self._table = LayerTable(step.layers)
        self._barrier = make_barrier(self._kv_manager.k_cache.device) if on_triton else None

    def __call__(self, x: Tensor, slot_mapping: Tensor) -> Tensor:
        """The last layer's output [B, E] for the first one's input x [B, E], in x's own memory; the new keys
        and values are in the cache. slot_mapping: [B], the slot of each request."""
        slots, kv_manager = self._slots, self._kv_manager
        arguments = (
            x,
            self._table,
            kv_manager.k_cache,
            kv_manager.v_cache,
            slots.block_tables,
            slots.context_lens,
            slot_mapping,
        )
        if self._barrier is None:
            return decode_layers_plain(*arguments)
        return decode_layers_persistent_triton(*arguments, self._barrier)
