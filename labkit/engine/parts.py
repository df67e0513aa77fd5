"""From a rung's options to the classes that make it so."""

from labkit.engine.decode_step import DecodeStep
from labkit.kernels import (
    PagedAttentionFunction,
    paged_attention_plain,
    paged_attention_triton,
    require_triton,
    triton_status,
)
from labkit.kvcache import AppendPerToken, KVBlockManager, RebuiltBlockTables
from labkit.model import GPT2
from labkit.options import EngineOptions

BLOCK_TABLES = {"rebuilt": RebuiltBlockTables}
KV_APPEND = {"per_token": AppendPerToken}


def build_decode_step(
    options: EngineOptions, gpt2: GPT2, kv_manager: KVBlockManager, max_batch_size: int
) -> DecodeStep:
    max_blocks_per_seq = kv_manager.blocks_for(gpt2.config.n_positions)
    return DecodeStep(
        gpt2,
        kv_manager,
        BLOCK_TABLES[options.block_tables](kv_manager, max_batch_size, max_blocks_per_seq),
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
