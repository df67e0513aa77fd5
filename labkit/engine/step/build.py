"""Builds the parts of an engine that its options choose: KV manager, decode step, readback, prefill."""

import sys

import numpy as np
import torch

from labkit.engine.config import CacheConfig
from labkit.engine.device import cache_dtype
from labkit.engine.overlap import ReadAtOnce, ReadOneBehind
from labkit.engine.packed_prefill import PackedPrefill
from labkit.engine.parts import Parts
from labkit.engine.prefill import PaddedPrefill
from labkit.engine.scheduler import OnlineScheduler
from labkit.engine.speculation import ReadVerified
from labkit.engine.step.attention import AttendAndWrite, AttendThenWrite, SharedAttention, SplitAttention
from labkit.engine.step.chunk import ChunkStep, PackedAttention, ResidentChunkStep
from labkit.engine.step.chunk_layout import ChunkLayout
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.first_tokens import FirstTokenSampler
from labkit.engine.step.fused import (
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
    PagedAttentionAppend,
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
from labkit.model import ModelConfig, Network
from labkit.options import EngineOptions

# Attention and K/V append of a chunk of prompts.
PACKED_PLAIN = (packed_attention_plain, kv_append_packed_plain)
PACKED_TRITON = (packed_attention_triton, kv_append_packed_triton)


def build_kv_manager(
    parts: Parts,
    config: ModelConfig,
    cache: CacheConfig,
    device: torch.device,
    dtype: torch.dtype,
) -> KVBlockManager:
    """An empty KV pool for the model, its bookkeeping as the options say.

    cache: fitted to the model and the device.
    """
    options = parts.options
    manager = parts["layer_tables" if options.layer_tables == "shared" else "block_info"]
    return manager(
        num_layers=config.num_layers,
        num_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=cache.block_size,
        max_blocks_per_layer=cache.max_blocks_per_layer,
        max_blocks_per_seq=-(-cache.max_positions // cache.block_size),
        device=device,
        dtype=dtype,
        cache_dtype=cache_dtype(dtype, options, device),
        kv_write=None if options.kv_write == "fused" else parts["kv_write"](device),
    )


def build_decode_step(
    parts: Parts, network: Network, kv_manager: KVBlockManager, max_batch_size: int
) -> DecodeStep | ResidentDecodeStep:
    """The step that makes one more token for each running request, put together as the options say."""
    if parts.options.block_tables == "resident":
        assert isinstance(kv_manager, MutableInfoBlockManager), "NEEDS asks for block_info = 'mutable'"
        return build_resident_step(parts, network, kv_manager, max_batch_size)
    return DecodeStep(
        network,
        kv_manager,
        parts["block_tables"](kv_manager, max_batch_size),
        parts["kv_append"](kv_manager),
        parts.own("attention") or pick_attention(parts.options.attention, kv_manager.k_cache.device.type),
    )


def build_readback(
    parts: Parts, network: Network, kv_manager: KVBlockManager, decode_step: DecodeStep | ResidentDecodeStep
) -> ReadAtOnce | ReadOneBehind:
    """The way in which tokens are read that the options choose, and in which drafts are verified."""
    if parts.options.speculation == "none":
        return parts["readback"](decode_step)
    assert isinstance(decode_step, ResidentDecodeStep), "NEEDS asks for block_tables = 'resident'"
    verify_step = build_verify_step(parts, network, kv_manager, decode_step)
    return ReadVerified(decode_step, verify_step, as_on_gpu=kv_manager.k_cache.is_cuda)


def build_verify_step(
    parts: Parts, network: Network, kv_manager: KVBlockManager, decode_step: ResidentDecodeStep
) -> ResidentVerifyStep:
    """The step that verifies drafts, by the weights of the decode step, launched as the options say."""
    device, options = kv_manager.k_cache.device, parts.options
    decoding = device_step_of(decode_step)
    assert isinstance(decoding, FusedDeviceStep), "NEEDS asks for layer_kernels = 'fused'"
    on_triton = pick_attention(options.attention, device.type) is paged_attention_triton
    kernels = suited(
        fused_kernels(options, network, kv_manager, on_triton), decoding.layers[0], network.ranks
    )
    attention = PackedAttention(kv_manager, *(PACKED_TRITON if on_triton else PACKED_PLAIN))
    if decoding.asks_early:
        kernels = kernels.prefetching
    verify_step = (parts.own("speculation") or VerifyStep)(
        ChunkLayers(decoding, attention, kernels),
        decode_step.slots,
        build_sampler(parts, on_triton),
        VerifyKernels.on_triton(device) if on_triton else PLAIN_VERIFY,
        kv_manager.max_blocks_per_seq * kv_manager.block_size,
    )
    is_graph = options.launch == "graph" and device.type == "cuda"  # plain attention was refused before
    launched = GraphedVerifyStep(verify_step) if is_graph else verify_step
    return ResidentVerifyStep(decode_step, launched, verify_step)


def build_resident_step(
    parts: Parts, network: Network, kv_manager: MutableInfoBlockManager, max_batch_size: int
) -> ResidentDecodeStep:
    """A step whose state stays on the device, launched as the options say.

    Raises OptionError for graphs of an attention that cannot be captured, and for fused kernels of a network
    that does other arithmetic.
    """
    device, options = kv_manager.k_cache.device, parts.options
    on_triton = pick_attention(options.attention, device.type) is paged_attention_triton
    # Where there are no graphs, their plain form; the caller's own launch knows what it needs.
    is_graph = options.launch == "graph" and (device.type == "cuda" or parts.own("launch") is not None)
    if is_graph and device.type == "cuda" and not on_triton:
        raise OptionError("launch = 'graph' cannot capture plain attention; it needs attention = 'triton'")
    head_dim = kv_manager.k_cache.shape[-1]
    if on_triton and not can_be_read(kv_manager.k_cache.dtype, head_dim):
        raise OptionError(
            f"kv_cache_dtype = '{options.kv_cache_dtype}' needs heads of a multiple of 4 values in Triton's "
            f"kernels, and this model's have {head_dim}. Take 'auto'"
        )
    slots = parts["block_tables"](kv_manager, max_batch_size)
    device_step = build_device_step(parts, network, kv_manager, slots, on_triton)
    device_step.sampler = build_sampler(parts, on_triton)
    launched = parts["launch"](device_step) if is_graph else device_step
    step = ResidentDecodeStep(kv_manager, slots, launched, device_step.attention.path, device_step)
    if options.latency == "hidden" and on_triton and device.type == "cuda":
        carry_by_kernels(step)
    return step


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


def build_sampler(parts: Parts, on_triton: bool) -> Sampler:
    """How tokens are drawn on the device, as the options choose."""
    if parts.options.sampler == "searched":
        return SearchedSampler(parts.own("sampler") or (draw_triton if on_triton else draw_plain))
    return SortedSampler()


def build_prefill(
    parts: Parts,
    network: Network,
    scheduler: OnlineScheduler,
    kv_manager: KVBlockManager,
    prefix_cache: Prefixes | None,
    decode_step: DecodeStep | ResidentDecodeStep,
) -> PaddedPrefill | PackedPrefill:
    """How prompts are computed, as the options choose."""
    if parts.options.batching == "padded":
        return PaddedPrefill(network, scheduler, prefix_cache)
    device, decoding = kv_manager.k_cache.device, device_step_of(decode_step)
    # Not where ranks sum: two streams' sums could meet in one order here and in another there.
    has_side = device.type == "cuda" and network.ranks.size == 1
    side = SideStream(device) if has_side else NO_SIDE
    with side:  # which the memory belongs to
        chunk_step = build_chunk_step(parts, network, scheduler, kv_manager, decoding, side)
    side.join()
    return PackedPrefill(chunk_step, parts["batching"], scheduler, prefix_cache)


def build_chunk_step(
    parts: Parts,
    network: Network,
    scheduler: OnlineScheduler,
    kv_manager: KVBlockManager,
    decoding: object,
    side: SideStream | NoSide,
) -> ResidentChunkStep:
    """The device's part of a chunk, launched as the options say.

    decoding: the device's part of a decode step; a fused one lends its weights and kernels to short chunks.
    side: what chunks are launched in.
    """
    device, options, config = kv_manager.k_cache.device, parts.options, scheduler.config
    on_triton = pick_attention(options.attention, device.type) is paged_attention_triton
    max_prompts = min(config.prefill_max_batch_size, config.max_batch_size)
    max_positions = kv_manager.max_blocks_per_seq * kv_manager.block_size
    max_tokens = min(config.prefill_max_tokens, max_prompts * max_positions)
    layout = ChunkLayout(max_prompts, kv_manager.max_blocks_per_seq)
    kernels = PACKED_TRITON if on_triton else PACKED_PLAIN
    attention = PackedAttention(kv_manager, *kernels)
    if isinstance(decoding, FusedDeviceStep):
        fused = fused_kernels(options, network, kv_manager, on_triton)
        chunk_step: ChunkStep = FusedChunkStep(network, attention, layout, decoding, fused)
    else:
        head = padded_head(network.lm_head.weight.detach())
        chunk_step = ChunkStep(network, attention, layout, head)
    launched: ChunkStep | GraphedChunkStep = chunk_step
    if options.launch == "graph" and device.type == "cuda":  # plain attention was refused before
        max_tokens = network.ranks.least(min(max_tokens, most_rows(device)))  # their GPUs may differ
        launched = GraphedChunkStep(chunk_step, max_tokens, device)
    sampler = FirstTokenSampler(build_sampler(parts, on_triton), layout, device)
    if device.type == "cuda":
        logits = torch.zeros(max_prompts, network.config.vocab_size, dtype=network.dtype, device=device)
        numbers = torch.zeros(layout.size(0), dtype=torch.int64, device=device)
        sampler.warm_up(logits, numbers)
    return ResidentChunkStep(launched, sampler, layout, kv_manager, max_tokens, side)


def build_device_step(
    parts: Parts,
    network: Network,
    kv_manager: MutableInfoBlockManager,
    slots: DeviceSlots,
    on_triton: bool,
) -> DeviceStep:
    """The device's work of a step.

    on_triton: in Triton kernels where there are any, else in plain PyTorch.
    """
    is_hidden = parts.options.latency == "hidden"
    check_own_kernels(parts, network)
    device_step = parts["latency" if is_hidden else "layer_kernels"]
    if parts.options.kv_write != "fused":
        plain, triton = (
            (paged_attention_plain, kv_append_identity_pos_plain),
            (paged_attention_triton, kv_append_triton_identity_pos),
        )
        return device_step(slots, network, AttendThenWrite(kv_manager, *(triton if on_triton else plain)))
    if parts.options.layer_kernels != "fused":
        kernel = paged_attention_append_triton if on_triton else paged_attention_append_plain
        return device_step(slots, network, AttendAndWrite(kv_manager, parts.own("kv_write") or kernel))
    lanes = [
        build_lane(parts, network, kv_manager, len(slots.slot_mapping), on_triton)
        for _ in range(NUM_LANES if is_hidden else 1)
    ]
    if not is_hidden:
        return device_step(slots, network, *lanes[0])
    made = device_step(slots, network, lanes)
    if parts.own("latency") is None and not halves_gain(kv_manager.k_cache.device):
        made.least_rows = sys.maxsize
    return made


def check_own_kernels(parts: Parts, network: Network) -> None:
    """Raises OptionError for kernels of the caller's that would not know what the network's heads are."""
    config, options = network.config, parts.options
    is_grouped = options.kv_write == "fused" and config.num_kv_heads < config.num_heads
    is_rotated = options.layer_kernels == "fused" and network.decoder_weights().rotary is not None
    for name in ("kv_write", "layer_kernels"):
        if (is_grouped or is_rotated) and parts.own(name) is not None:
            raise OptionError(
                f"the part for {name} is one for layers such as GPT-2's, and {type(network).__name__}'s have "
                "keys that several queries share, or that are rotated. Leave the part out"
            )


def build_lane(
    parts: Parts,
    network: Network,
    kv_manager: MutableInfoBlockManager,
    max_batch_size: int,
    on_triton: bool,
) -> Lane:
    """What the launches of a fused step need, those of Triton with workspaces of their own and the tiles that
    were measured on its GPU. Raises RecordError if their file is damaged."""
    kernel: PagedAttentionAppend = paged_attention_append_plain
    if on_triton:
        is_packed = parts.options.batching == "packed"
        form = SharedAttention if is_packed else SplitAttention
        kernel = form(kv_manager, max_batch_size, network.config.num_heads)
    attention = AttendAndWrite(kv_manager, parts.own("kv_write") or kernel)
    return Lane(attention, fused_kernels(parts.options, network, kv_manager, on_triton))


def fused_kernels(
    options: EngineOptions, network: Network, kv_manager: KVBlockManager, on_triton: bool
) -> FusedKernels:
    """The kernels of a fused step: of Triton, with a workspace of their own, or their plain twins. Where
    latency is hidden, products may hold their weights before they wait. Where ranks have a part of each layer
    each, their sum comes between a product and its residual. Raises RecordError if the file of tiles measured
    on the GPU is damaged."""
    if not on_triton:
        return summed(PLAIN, network)
    device = kv_manager.k_cache.device
    measured = tiles_for(device, kv_manager.dtype, can_hold=options.latency == "hidden")
    return summed(triton_kernels(device, measured), network)


def launch_of(options: EngineOptions, decode_step: DecodeStep | ResidentDecodeStep) -> str:
    """How a step is launched, "graph" or "eager"; where graphs cannot be had, with the reason."""
    if isinstance(decode_step, ResidentDecodeStep) and isinstance(decode_step.device_step, GraphedStep):
        return "graph"
    return "eager: graphs need a CUDA GPU" if options.launch == "graph" else "eager"


def tiles_of(decode_step: DecodeStep | ResidentDecodeStep) -> str:
    """Where the tiles of the step's products come from; "none", with the reason, where they have none."""
    device_step = device_step_of(decode_step)
    if isinstance(device_step, FusedDeviceStep):
        return device_step.tiles
    return "none: the products are PyTorch's"


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
