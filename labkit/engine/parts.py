"""From a rung's options to the classes that make it so."""

import torch

from labkit.engine.decode_step import DecodeStep
from labkit.kernels import (
    PagedAttentionFunction,
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
    RebuiltBlockTables,
)
from labkit.model import GPT2, GPT2Config
from labkit.options import EngineOptions

BLOCK_TABLES = {"rebuilt": RebuiltBlockTables, "cached": CachedBlockTables}
KV_APPEND = {
    "per_token": AppendPerToken,
    "batched_fast_path": AppendBatchedFastPath,
    "batched": AppendBatched,
}
KV_WRITE = {"indexed": IndexedWrite, "full_batch": FullBatchWrite, "identity_pos": IdentityPosWrite}
BLOCK_INFO = {"replaced": KVBlockManager, "mutable": MutableInfoBlockManager}


def build_kv_manager(
    options: EngineOptions,
    config: GPT2Config,
    block_size: int,
    max_blocks_per_layer: int,
    device: torch.device,
    dtype: torch.dtype,
) -> KVBlockManager:
    return BLOCK_INFO[options.block_info](
        num_layers=config.n_layer,
        num_heads=config.n_head,
        head_dim=config.head_dim,
        block_size=block_size,
        max_blocks_per_layer=max_blocks_per_layer,
        max_blocks_per_seq=-(-config.n_positions // block_size),
        device=device,
        dtype=dtype,
        kv_write=KV_WRITE[options.kv_write](device),
    )


def build_decode_step(
    options: EngineOptions, gpt2: GPT2, kv_manager: KVBlockManager, max_batch_size: int
) -> DecodeStep:
    return DecodeStep(
        gpt2,
        kv_manager,
        BLOCK_TABLES[options.block_tables](kv_manager, max_batch_size),
        KV_APPEND[options.kv_append](kv_manager),
        pick_attention(options.attention, kv_manager.k_cache.device.type),
    )


def pick_attention(choice: str, device_type: str) -> PagedAttentionFunction:
    """Raises TritonUnavailableError if the kernel is asked for where it cannot run."""
    if choice == "auto":
        choice = "triton" if device_type == "cuda" and triton_status().mode == "native" else "plain"
    if choice == "plain":
        return paged_attention_plain
    require_triton()
    return paged_attention_triton
