"""The device's part of a decode step with hidden waits (rung 11): two lanes, one kernel, or weights asked for
ahead."""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from labkit.engine.step.attention import AttendAndWrite, SharedAttention, SplitAttention
from labkit.engine.step.fused import FusedDeviceStep, FusedKernels, FusedLayer
from labkit.engine.step.slots import DeviceSlots
from labkit.kernels import paged_attention_append_plain
from labkit.kernels.persistent_layers import (
    LayerTable,
    decode_layers_persistent_triton,
    decode_layers_plain,
    make_barrier,
)
from labkit.kernels.triton_runtime import early_launch
from labkit.model import Network

NUM_LANES = 2
WIDEST = 768  # numbers of a row: of wider layers more weights may not fit in registers, and none was measured
LAYERS_IN_L2 = 3  # a GPU's cache has room for the weights of so many, where what is done here gains

Run = Callable[[], Tensor]  # launches the layers of some rows: the last one's output [B, E]


class Lane(NamedTuple):
    """What launches that follow each other need for themselves: kernels and attention whose workspaces no
    other lane has. Two launches at once in one workspace would count each other's parts."""

    attention: AttendAndWrite
    kernels: FusedKernels


class CudaStreams:
    """The stream that launches go to, and one beside it on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.side: Any = torch.cuda.Stream(device) if device.type == "cuda" else None

    @property
    def main(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream()

    @property
    def are_captured(self) -> bool:
        """Whether a graph captures what is launched now."""
        return self.side is not None and torch.cuda.is_current_stream_capturing()

    def launching_in(self, stream: torch.cuda.Stream) -> AbstractContextManager:
        """Inside the block, launches go to `stream`."""
        return torch.cuda.stream(stream)


class HalfStep(FusedDeviceStep):
    """The layers of a step, with the step's weights, for the launches of one lane."""

    def __init__(self, step: FusedDeviceStep, lane: Lane) -> None:
        vars(self).update(vars(step))  # its weights are in memory once
        self.attention, self.kernels = lane


def fits_in_l2(layer: FusedLayer, device: torch.device) -> bool:
    """Whether the device's L2 cache has room for LAYERS_IN_L2 such layers: then what one half has read is
    still there for the other. For a CPU, which has no such cache, True."""
    if device.type != "cuda":
        return True
    num_bytes = sum(product.weight.nbytes for product in layer.products)
    return LAYERS_IN_L2 * num_bytes <= torch.cuda.get_device_properties(device).L2_cache_size


def halves_gain(device: torch.device) -> bool:
    """Whether two halves beside each other may be faster than a whole batch: on a GPU where no kernel begins
    before the one in front has ended. Where one does, products load their weights while they wait, and halves
    have less to fill: on H100s and H200s they cost more than they gain."""
    return device.type == "cuda" and not early_launch(device)["EARLY"]


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


class LanedDeviceStep(FusedDeviceStep):
    """A `FusedDeviceStep` in which little waits for the kernel before it. How depends on the batch:

    - Where `halves_gain`, a large one goes through the layers in two halves. Inside a CUDA graph each half
      has a stream of its own: while a kernel of one waits, the GPU has one of the other. Elsewhere the halves
      follow each other.
    - A single row goes through all layers in one kernel (`PersistentLayers`).
    - In between, the products ask for their weights while they wait, or hold them by then where that is
      faster, also in layers that go another way.

    Through layers too large for the GPU's cache (`fits_in_l2`) every batch of more rows goes as a whole, and
    nothing is asked for early. So does every batch where ranks have a part of each layer: sums of two streams
    could meet in one order here and in another there. The tokens are the same.
    """

    watch_points: ClassVar[tuple[str, ...]] = ("streams", "halves", "few")

    can_hold = True
    least_rows = 32  # of a batch that is cut into halves

    def __init__(self, slots: DeviceSlots, network: Network, lanes: Sequence[Lane]) -> None:
        """lanes: for each half, what its launches need for themselves. A whole batch takes the first's, for
        it never runs beside the halves."""
        attention, kernels = lanes[0]
        super().__init__(slots, network, attention, kernels)
        is_small = self.asks_early = fits_in_l2(self.layers[0], slots.slot_mapping.device)
        if is_small:
            self.kernels = kernels.prefetching
        if not is_small or network.ranks.size > 1:
            self.least_rows = sys.maxsize
        self.halves = [HalfStep(self, lane) for lane in lanes]
        self.few = PersistentLayers(self) if PersistentLayers.fits(self) else None
        self.streams = CudaStreams(slots.slot_mapping.device)

    @property
    def has_head_kernel(self) -> bool:
        return self.few is None and super().has_head_kernel  # that kernel makes no statistics

    def through_layers(self, slot_mapping: Tensor, max_context_len: int) -> Tensor:
        if len(slot_mapping) < self.least_rows:
            if self.few is None or len(slot_mapping) > 1:
                return super().through_layers(slot_mapping, max_context_len)
            return self.few(self.embedded(slot_mapping)[0], slot_mapping)
        pairs = zip(self.halves, slot_mapping.chunk(len(self.halves)), strict=True)
        first, second = (partial(step.through_layers, rows, max_context_len) for step, rows in pairs)
        if self.streams.are_captured:
            return torch.cat(self.beside_each_other(first, second))
        return torch.cat([first(), second()])

    def beside_each_other(self, first: Run, second: Run) -> list[Tensor]:
        """What both runs make, the second's launches in a stream beside the first's, while a graph captures.

        The streams' order is the graph's. Their first kernels, and the one behind the join, are launched in
        that order: none of them begins early, when what it reads is not there yet.
        """
        main, side = self.streams.main, self.streams.side
        side.wait_stream(main)
        with self.streams.launching_in(side):
            there = second()
        here = first()
        main.wait_stream(side)
        return [here, there]
