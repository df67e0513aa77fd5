"""Builds the parts of an engine that its options choose: KV manager, decode step, readback, prefill."""

import sys
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch

from labkit.engine.config import CacheConfig, SchedulerConfig
from labkit.engine.device import cache_dtype
from labkit.engine.overlap import ReadAtOnce, ReadOneBehind
from labkit.engine.packed_prefill import PackedPrefill
from labkit.engine.parts import Parts
from labkit.engine.prefill import PaddedPrefill
from labkit.engine.scheduler import OnlineScheduler
from labkit.engine.speculation import ReadVerified
from labkit.engine.step.attention import AttendAndWrite, AttendThenWrite, SharedAttention, SplitAttention
from labkit.engine.step.chunk import ChunkStep, FirstTokenSampler, PackedAttention, ResidentChunkStep
from labkit.engine.step.chunk_layout import ChunkLayout
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.fused import (
    NO_TILES,
    PLAIN,
    FusedDeviceStep,
    FusedKernels,
    padded_head,
    suited,
    triton_kernels,
)
from labkit.engine.step.fused_chunk import ChunkLayers, FusedChunkStep
from labkit.engine.step.graphed import GraphedStep
from labkit.engine.step.graphed_chunk import GraphedChunkStep, most_rows
from labkit.engine.step.host import DecodeStep
from labkit.engine.step.lanes import NUM_LANES, Lane, halves_gain
from labkit.engine.step.resident import ResidentDecodeStep
from labkit.engine.step.samplers import Sampler, SearchedSampler, SortedSampler
from labkit.engine.step.side_stream import NO_SIDE, NoSide, SideStream
from labkit.engine.step.slots import DeviceSlots, SlotState
from labkit.engine.step.summed import summed
from labkit.engine.step.verify import PLAIN as PLAIN_VERIFY
from labkit.engine.step.verify import GraphedVerifyStep, VerifyKernels, VerifyStep
from labkit.engine.step.verify_flight import ResidentVerifyStep
from labkit.errors import OptionError
from labkit.kernels import (
    PagedAttentionFunction,
    draw_plain,
    draw_triton,
    kv_append_identity_pos_plain,
    kv_append_packed_plain,
    kv_append_packed_triton,
    kv_append_triton_identity_pos,
    packed_attention_plain,
    packed_attention_triton,
    paged_attention_append_plain,
    paged_attention_append_triton,
    paged_attention_plain,
    paged_attention_triton,
    require_triton,
    triton_status,
)
from labkit.kernels.eight_bit import can_be_read
from labkit.kernels.host_numbers import copy_numbers_triton, scatter_words_triton
from labkit.kernels.tile_tables import tiles_for
from labkit.kvcache import KVBlockManager, MutableInfoBlockManager, Prefixes
from labkit.model import Network
from labkit.options import EngineOptions


class Builder:
    """Makes each part of one engine, put together as the options say.

    kv_manager: an empty KV pool for the network, made first.
    """

    def __init__(
        self, parts: Parts, network: Network, cache: CacheConfig, scheduler: SchedulerConfig
    ) -> None:
        """network: on the engine's device, in its dtype. cache, scheduler: fitted to both."""
        self.parts, self.network, self.scheduler_config = parts, network, scheduler
        self.options, self.device = parts.options, network.device
        self.is_cuda = self.device.type == "cuda"
        options, config = self.options, network.config
        manager = parts["layer_tables" if options.layer_tables == "shared" else "block_info"]
        self.kv_manager: KVBlockManager = manager(
            num_layers=config.num_layers,
            num_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            block_size=cache.block_size,
            max_blocks_per_layer=cache.max_blocks_per_layer,
            max_blocks_per_seq=-(-cache.max_positions // cache.block_size),
            device=self.device,
            dtype=network.dtype,
            cache_dtype=cache_dtype(network.dtype, options, self.device),
            kv_write=None if options.kv_write == "fused" else parts["kv_write"](self.device),
        )
        self.max_positions = self.kv_manager.max_blocks_per_seq * cache.block_size  # room in a block table

    @cached_property
    def on_triton(self) -> bool:
        """Whether kernels are Triton's where there are any; otherwise they are plain PyTorch. Raises
        TritonUnavailableError if they are asked for where they cannot run."""
        return pick_attention(self.options.attention, self.device.type) is paged_attention_triton

    def prefix_cache(self, cache: CacheConfig) -> Prefixes | None:
        """The cache of prefixes; None if there is to be none."""
        part = self.parts["prefixes"]
        if not cache.prefix_cache:
            return None
        limits = () if self.options.prefixes == "blocks" else (cache.max_prefix_entries,)
        made: Prefixes = part(self.kv_manager, *limits)
        return made

    # --- decode steps ------------------------------------------------------------------------------

    def decode_step(self) -> DecodeStep | ResidentDecodeStep:
        """The step that makes one more token for each running request."""
        if self.options.block_tables == "resident":
            return self.resident_step()
        return DecodeStep(
            self.network,
            self.kv_manager,
            self.parts["block_tables"](self.kv_manager, self.scheduler_config.max_batch_size),
            self.parts["kv_append"](self.kv_manager),
            self.parts.own("attention") or pick_attention(self.options.attention, self.device.type),
        )

    def resident_step(self) -> ResidentDecodeStep:
        """A step whose state stays on the device, launched as the options say.

        Raises OptionError for graphs of an attention that cannot be captured, and for fused kernels of a
        network that does other arithmetic.
        """
        parts, manager, options = self.parts, self.kv_manager, self.options
        assert isinstance(manager, MutableInfoBlockManager), "NEEDS asks for block_info = 'mutable'"
        # Where there are no graphs, their plain form; the caller's own launch knows what it needs.
        is_graph = options.launch == "graph" and (self.is_cuda or parts.own("launch") is not None)
        if is_graph and self.is_cuda and not self.on_triton:
            raise OptionError(
                "launch = 'graph' cannot capture plain attention; it needs attention = 'triton'"
            )
        head_dim = manager.k_cache.shape[-1]
        if self.on_triton and not can_be_read(manager.k_cache.dtype, head_dim):
            raise OptionError(
                f"kv_cache_dtype = '{options.kv_cache_dtype}' needs heads of a multiple of 4 values in "
                f"Triton's kernels, and this model's have {head_dim}. Take 'auto'"
            )
        slots = parts["block_tables"](manager, self.scheduler_config.max_batch_size)
        device_step = self.device_step(manager, slots)
        device_step.sampler = self.sampler()
        launched = parts["launch"](device_step) if is_graph else device_step
        step = ResidentDecodeStep(manager, slots, launched, device_step)
        if options.latency == "hidden" and self.on_triton and self.is_cuda:
            carry_by_kernels(step)
        return step

    def device_step(self, manager: MutableInfoBlockManager, slots: DeviceSlots) -> DeviceStep:
        """The device's work of a step."""
        parts, network, options = self.parts, self.network, self.options
        is_hidden = options.latency == "hidden"
        self.check_own_kernels()
        device_step = parts["latency" if is_hidden else "layer_kernels"]
        if options.kv_write != "fused":
            functions = paged_attention_plain, kv_append_identity_pos_plain
            if self.on_triton:
                functions = paged_attention_triton, kv_append_triton_identity_pos
            return device_step(slots, network, AttendThenWrite(manager, *functions))
        if options.layer_kernels != "fused":
            kernel = paged_attention_append_triton if self.on_triton else paged_attention_append_plain
            return device_step(slots, network, AttendAndWrite(manager, parts.own("kv_write") or kernel))
        num_lanes = NUM_LANES if is_hidden else 1
        lanes = [self.lane(manager, len(slots.slot_mapping)) for _ in range(num_lanes)]
        if not is_hidden:
            return device_step(slots, network, *lanes[0])
        made = device_step(slots, network, lanes)
        if parts.own("latency") is None and not halves_gain(self.device):
            made.least_rows = sys.maxsize
        return made

    def check_own_kernels(self) -> None:
        """Raises OptionError for kernels of the caller's that would not know what the network's heads are."""
        config, options = self.network.config, self.options
        is_grouped = options.kv_write == "fused" and config.num_kv_heads < config.num_heads
        is_rotated = options.layer_kernels == "fused" and self.network.decoder_weights().rotary is not None
        for name in ("kv_write", "layer_kernels"):
            if (is_grouped or is_rotated) and self.parts.own(name) is not None:
                raise OptionError(
                    f"the part for {name} is one for layers such as GPT-2's, and "
                    f"{type(self.network).__name__}'s have keys that several queries share, or that are "
                    "rotated. Leave the part out"
                )

    def lane(self, manager: MutableInfoBlockManager, max_batch_size: int) -> Lane:
        """What the launches of a fused step need, those of Triton with workspaces of their own."""
        kernel: Callable[..., torch.Tensor] = paged_attention_append_plain
        if self.on_triton:
            form = SharedAttention if self.options.batching == "packed" else SplitAttention
            kernel = form(manager, max_batch_size, self.network.config.num_heads)
        return Lane(AttendAndWrite(manager, self.parts.own("kv_write") or kernel), self.fused_kernels())

    def fused_kernels(self) -> FusedKernels:
        """The kernels of a fused step: of Triton, with a workspace of their own, or their plain twins. Where
        latency is hidden, products may hold their weights before they wait. Where ranks have a part of each
        layer each, their sum comes between a product and its residual. Raises RecordError if the file of
        tiles measured on the GPU is damaged."""
        if not self.on_triton:
            return summed(PLAIN, self.network)
        can_hold = self.options.latency == "hidden"
        measured = tiles_for(self.device, self.network.dtype, can_hold=can_hold)
        return summed(triton_kernels(self.device, measured), self.network)

    def packed_attention(self) -> PackedAttention:
        """Attention and K/V append of a chunk of prompts, or of rows that are verified."""
        if self.on_triton:
            return PackedAttention(self.kv_manager, packed_attention_triton, kv_append_packed_triton)
        return PackedAttention(self.kv_manager, packed_attention_plain, kv_append_packed_plain)

    def sampler(self) -> Sampler:
        """How tokens are drawn on the device."""
        if self.options.sampler == "searched":
            draw = draw_triton if self.on_triton else draw_plain
            return SearchedSampler(self.parts.own("sampler") or draw)
        return SortedSampler()

    # --- what is read, and verified ----------------------------------------------------------------

    def readback(self, decode_step: DecodeStep | ResidentDecodeStep) -> ReadAtOnce | ReadOneBehind:
        """The way in which tokens are read, and in which drafts are verified."""
        if self.options.speculation == "none":
            return self.parts["readback"](decode_step)
        assert isinstance(decode_step, ResidentDecodeStep), "NEEDS asks for block_tables = 'resident'"
        return ReadVerified(decode_step, self.verify_step(decode_step), as_on_gpu=self.is_cuda)

    def verify_step(self, decode_step: ResidentDecodeStep) -> ResidentVerifyStep:
        """The step that verifies drafts, by the weights of the decode step."""
        decoding = device_step_of(decode_step)
        assert isinstance(decoding, FusedDeviceStep), "NEEDS asks for layer_kernels = 'fused'"
        kernels = suited(self.fused_kernels(), decoding.layers[0], self.network.ranks)
        if decoding.asks_early:
            kernels = kernels.prefetching
        verify_step: Any = (self.parts.own("speculation") or VerifyStep)(
            ChunkLayers(decoding, self.packed_attention(), kernels),
            decode_step.slots,
            self.sampler(),
            VerifyKernels.on_triton(self.device) if self.on_triton else PLAIN_VERIFY,
            self.max_positions,
        )
        is_graph = self.options.launch == "graph" and self.is_cuda  # plain attention was refused before
        launched = GraphedVerifyStep(verify_step) if is_graph else verify_step
        return ResidentVerifyStep(decode_step, launched, verify_step)

    # --- prompts -----------------------------------------------------------------------------------

    def prefill(
        self, scheduler: OnlineScheduler, decode_step: DecodeStep | ResidentDecodeStep
    ) -> PaddedPrefill | PackedPrefill:
        """How prompts are computed."""
        if self.options.batching == "padded":
            return PaddedPrefill(self.network, scheduler)
        # Not where ranks sum: two streams' sums could meet in one order here and in another there.
        has_side = self.is_cuda and self.network.ranks.size == 1
        side = SideStream(self.device) if has_side else NO_SIDE
        with side:  # which the memory belongs to
            chunk_step = self.chunk_step(device_step_of(decode_step), side)
        side.join()
        return PackedPrefill(chunk_step, self.parts["batching"], scheduler)

    def chunk_step(self, decoding: object, side: SideStream | NoSide) -> ResidentChunkStep:
        """The device's part of a chunk.

        decoding: the device's part of a decode step; a fused one lends its weights and kernels to short
        chunks. side: what chunks are launched in.
        """
        network, config, device = self.network, self.scheduler_config, self.device
        max_prompts = min(config.prefill_max_batch_size, config.max_batch_size)
        max_tokens = min(config.prefill_max_tokens, max_prompts * self.max_positions)
        layout = ChunkLayout(max_prompts, self.kv_manager.max_blocks_per_seq)
        attention = self.packed_attention()
        if isinstance(decoding, FusedDeviceStep):
            fused = self.fused_kernels()
            chunk_step: ChunkStep = FusedChunkStep(network, attention, layout, decoding, fused)
        else:
            head = padded_head(network.lm_head.weight.detach())
            chunk_step = ChunkStep(network, attention, layout, head)
        launched: ChunkStep | GraphedChunkStep = chunk_step
        if self.options.launch == "graph" and self.is_cuda:  # plain attention was refused before
            max_tokens = network.ranks.least(min(max_tokens, most_rows(device)))  # their GPUs may differ
            launched = GraphedChunkStep(chunk_step, max_tokens, device)
        sampler = FirstTokenSampler(self.sampler(), layout, device)
        if self.is_cuda:
            logits = torch.zeros(max_prompts, network.config.vocab_size, dtype=network.dtype, device=device)
            numbers = torch.zeros(layout.size(0), dtype=torch.int64, device=device)
            sampler.warm_up(logits, numbers)
        return ResidentChunkStep(launched, sampler, self.kv_manager, max_tokens, side)


def carry_by_kernels(step: ResidentDecodeStep) -> None:
    """Have the step's few numbers go between host and GPU by kernels, which are compiled now.

    A chunk's many go by copies: that kernels gain there has not been seen (data/latency_variants_h200.json).
    """
    if isinstance(step.slots, SlotState):  # the caller's own may send in another way
        memory = step.slots.memory
        memory.staging.copy = scatter_words_triton
        memory.put("block_tables", (0, 0, slice(1)), np.zeros(1, dtype=np.int32))  # as it is by now
        memory.write()
    step.pinned_tokens.copy = copy_numbers_triton
    numbers = torch.zeros(1, dtype=torch.int64, device=step.kv_manager.k_cache.device)
    step.pinned_tokens.start_copy(numbers).read()


def launch_of(options: EngineOptions, decode_step: DecodeStep | ResidentDecodeStep) -> str:
    """How a step is launched, "graph" or "eager"; where graphs cannot be had, with the reason."""
    if isinstance(decode_step, ResidentDecodeStep) and isinstance(decode_step.device_step, GraphedStep):
        return "graph"
    return "eager: graphs need a CUDA GPU" if options.launch == "graph" else "eager"


def tiles_of(decode_step: DecodeStep | ResidentDecodeStep) -> str:
    """Where the tiles of the step's products come from; "none", with the reason, where they have none."""
    tiles: str = getattr(device_step_of(decode_step), "tiles", NO_TILES)
    return tiles


def device_step_of(decode_step: DecodeStep | ResidentDecodeStep) -> object:
    """The device's part of a step, also of one that has graphs of it; None for a step of the host."""
    launched = getattr(decode_step, "device_step", None)
    return getattr(launched, "device_step", launched)


def pick_attention(choice: str, device_type: str) -> PagedAttentionFunction:
    """The paged attention that "auto", "plain" or "triton" means on such a device.

    Raises TritonUnavailableError if the kernel is asked for where it cannot run.
    """
    if choice == "auto":
        choice = "triton" if device_type == "cuda" and triton_status().mode == "native" else "plain"
    if choice == "plain":
        return paged_attention_plain
    require_triton()
    return paged_attention_triton
