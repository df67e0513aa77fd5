"""From a rung's options to the classes that make it so."""

import torch

from labkit.engine.readback import ReadAtOnce, ReadOneBehind
from labkit.engine.step.attention import AttendAndWrite, AttendThenWrite, LayerAttention, SplitAttention
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.fused import PLAIN, FusedDeviceStep, triton_kernels
from labkit.engine.step.graphed import GraphedStep
from labkit.engine.step.host import DecodeStep
from labkit.engine.step.resident import ResidentDecodeStep
from labkit.engine.step.slots import DeviceSlots
from labkit.errors import OptionError
from labkit.kernels import (
    PagedAttentionFunction,
    kv_append_identity_pos_plain,
    kv_append_triton_identity_pos,
    paged_attention_append_plain,
    paged_attention_append_triton,
    paged_attention_plain,
    paged_attention_triton,
    require_triton,
    triton_status,
)
from labkit.kvcache import (
    AppendBatched,
    AppendBatchedFastPath,
    AppendPerToken,
    CachedBlockTables,
    FullBatchWrite,
    IdentityPosWrite,
    IndexedWrite,
    KVBlockManager,
    MutableInfoBlockManager,
    OneTableBlockManager,
    RebuiltBlockTables,
)
from labkit.model import GPT2, GPT2Config
from labkit.options import EngineOptions

# What a `DecodeStep` is put together from; a `ResidentDecodeStep` has other parts.
BLOCK_TABLES = {"rebuilt": RebuiltBlockTables, "cached": CachedBlockTables}
KV_APPEND = {
    "per_token": AppendPerToken,
    "batched_fast_path": AppendBatchedFastPath,
    "batched": AppendBatched,
}
KV_WRITE = {"indexed": IndexedWrite, "full_batch": FullBatchWrite, "identity_pos": IdentityPosWrite}
READBACK = {"at_once": ReadAtOnce, "one_behind": ReadOneBehind}
BLOCK_INFO = {"replaced": KVBlockManager, "mutable": MutableInfoBlockManager}


def build_kv_manager(
    options: EngineOptions,
    config: GPT2Config,
    block_size: int,
    max_blocks_per_layer: int,
    device: torch.device,
    dtype: torch.dtype,
) -> KVBlockManager:
    is_shared = options.layer_tables == "shared"
    manager = OneTableBlockManager if is_shared else BLOCK_INFO[options.block_info]
    kv_write = KV_WRITE.get(options.kv_write)  # "fused" is not the manager's
    return manager(
        num_layers=config.n_layer,
        num_heads=config.n_head,
        head_dim=config.head_dim,
        block_size=block_size,
        max_blocks_per_layer=max_blocks_per_layer,
        max_blocks_per_seq=-(-config.n_positions // block_size),
        device=device,
        dtype=dtype,
        kv_write=kv_write(device) if kv_write else None,
    )


def build_decode_step(
    options: EngineOptions, gpt2: GPT2, kv_manager: KVBlockManager, max_batch_size: int
) -> DecodeStep | ResidentDecodeStep:
    if options.block_tables == "resident":
        return build_resident_step(options, gpt2, kv_manager, max_batch_size)
    return DecodeStep(
        gpt2,
        kv_manager,
        BLOCK_TABLES[options.block_tables](kv_manager, max_batch_size),
        KV_APPEND[options.kv_append](kv_manager),
        pick_attention(options.attention, kv_manager.k_cache.device.type),
    )


def build_readback(
    options: EngineOptions, decode_step: DecodeStep | ResidentDecodeStep
) -> ReadAtOnce | ReadOneBehind:
    return READBACK[options.readback](decode_step)


def build_resident_step(
    options: EngineOptions, gpt2: GPT2, kv_manager: KVBlockManager, max_batch_size: int
) -> ResidentDecodeStep:
    """Raises OptionError for graphs of an attention that cannot be captured."""
    device = kv_manager.k_cache.device
    slots = DeviceSlots(kv_manager, max_batch_size)
    attention = layer_attention(options, kv_manager, max_batch_size)
    if options.layer_kernels == "fused":
        on_triton = attention.attention is not paged_attention_append_plain
        kernels = triton_kernels(device) if on_triton else PLAIN
        device_step = FusedDeviceStep(slots, gpt2, attention, kernels)
    else:
        device_step = DeviceStep(slots, gpt2, attention)
    is_graph = options.launch == "graph" and device.type == "cuda"  # elsewhere, its plain form
    if is_graph and attention.attention is paged_attention_append_plain:
        raise OptionError("launch = 'graph' cannot capture plain attention; it needs attention = 'triton'")
    launcher = GraphedStep(device_step) if is_graph else device_step
    return ResidentDecodeStep(kv_manager, slots, launcher, attention.path)


def launch_of(options: EngineOptions, decode_step: DecodeStep | ResidentDecodeStep) -> str:
    """How a step is launched; where graphs cannot be had, with the reason."""
    if isinstance(decode_step, ResidentDecodeStep) and isinstance(decode_step.launcher, GraphedStep):
        return "graph"
    return "eager: graphs need a CUDA GPU" if options.launch == "graph" else "eager"


def layer_attention(
    options: EngineOptions, kv_manager: KVBlockManager, max_batch_size: int
) -> LayerAttention:
    is_triton = pick_attention(options.attention, kv_manager.k_cache.device.type) is paged_attention_triton
    if options.kv_write != "fused":
        return AttendThenWrite(
            kv_manager,
            paged_attention_triton if is_triton else paged_attention_plain,
            kv_append_triton_identity_pos if is_triton else kv_append_identity_pos_plain,
        )
    if not is_triton:
        return AttendAndWrite(kv_manager, paged_attention_append_plain)
    if options.layer_kernels == "fused":
        return AttendAndWrite(kv_manager, SplitAttention(kv_manager, max_batch_size))
    return AttendAndWrite(kv_manager, paged_attention_append_triton)


def pick_attention(choice: str, device_type: str) -> PagedAttentionFunction:
    """Raises TritonUnavailableError if the kernel is asked for where it cannot run."""
    if choice == "auto":
        choice = "triton" if device_type == "cuda" and triton_status().mode == "native" else "plain"
    if choice == "plain":
        return paged_attention_plain
    require_triton()
    return paged_attention_triton
