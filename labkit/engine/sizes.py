"""How many requests, blocks and prompt tokens an engine takes where its configs leave that open."""

import os
import sys
from dataclasses import replace
from typing import NamedTuple

import torch

from labkit.checks import shown
from labkit.engine.config import CacheConfig, SchedulerConfig
from labkit.errors import OptionError
from labkit.kernels.eight_bit import bytes_of_head
from labkit.model import ModelConfig


class Sizes(NamedTuple):
    """What an engine takes of a kind of device unless it is told otherwise."""

    max_batch_size: int
    prefill_max_tokens: int
    memory_share: float


ON_GPU = Sizes(max_batch_size=256, prefill_max_tokens=32768, memory_share=0.9)
ON_CPU = Sizes(max_batch_size=32, prefill_max_tokens=2048, memory_share=0.25)

# Bytes that CUDA graphs and workspaces take. GPT-2's for batches of 256 took 0.7 GiB when those of chunks had
# up to 2,048 rows; up to 8,192 rows take some 0.3 GiB more, by the sizes of what their graphs keep.
GRAPHS = 5 * 2**28
FEWEST_PROMPT_TOKENS = 512  # of a step's budget, however little memory there is
# A prompt token's activations are at most so many times the hidden state; GPT-2's are 17 on an H100.
HIDDEN_STATES_PER_TOKEN = 20


def fitted(
    device: torch.device,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    config: ModelConfig,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
) -> tuple[CacheConfig, SchedulerConfig]:
    """Both configs with what fits the model and the device wherever they say None.

    dtype: of the computation. cache_dtype: in which keys and values are kept.
    The weights must be on the device by now. Raises OptionError where not even one block fits, for more
    positions than the model has, and if what was asked for is larger than the device's whole memory: a block,
    the KV pool, or a batch's logits. (Sizes that pass may still not fit beside what is in memory; torch then
    says so.)
    """
    num_heads = 2 * config.num_layers * config.num_kv_heads  # of keys and values
    block_bytes = num_heads * bytes_of_head(cache.block_size, config.head_dim, cache_dtype)
    memory = memory_of(device)
    where = f"{device} has {memory / 2**30:.1f} GiB of memory"
    if (cache.max_blocks_per_layer or 1) * block_bytes > memory:
        raise OptionError(
            f"the KV pool is too large: {where}. Lower block_size ({shown(cache.block_size)}) or "
            f"max_blocks_per_layer ({shown(cache.max_blocks_per_layer)}; None takes as many as fit)"
        )
    if (scheduler.max_batch_size or 1) * config.vocab_size * dtype.itemsize > memory:
        raise OptionError(
            f"the logits of a full batch are too large: {where}. Lower max_batch_size "
            f"({shown(scheduler.max_batch_size)})"
        )
    usual = ON_GPU if device.type == "cuda" else ON_CPU
    batch_size = scheduler.max_batch_size or usual.max_batch_size
    max_positions = cache.max_positions or config.max_positions
    if max_positions > config.max_positions:
        raise OptionError(
            f"max_positions is {shown(max_positions)}, and the model has {config.max_positions} positions"
        )
    free = free_memory(device)
    num_blocks = cache.max_blocks_per_layer or min(
        batch_size * -(-max_positions // cache.block_size),
        int(free * (cache.memory_share or usual.memory_share)) // block_bytes,
    )
    if num_blocks < 1:
        raise OptionError(
            f"not one block of {shown(cache.block_size)} tokens fits: {device} has {free / 2**30:.1f} GiB "
            "free for the KV pool. Lower block_size, or raise memory_share"
        )
    rest = max(0, free - num_blocks * block_bytes)
    token_bytes = HIDDEN_STATES_PER_TOKEN * config.hidden_size * dtype.itemsize
    num_tokens = max(FEWEST_PROMPT_TOKENS, min(usual.prefill_max_tokens, rest // token_bytes))
    return replace(cache, max_blocks_per_layer=num_blocks, max_positions=max_positions), replace(
        scheduler,
        max_batch_size=batch_size,
        prefill_max_batch_size=scheduler.prefill_max_batch_size or batch_size,
        prefill_max_tokens=scheduler.prefill_max_tokens or num_tokens,
    )


def free_memory(device: torch.device) -> int:
    """Bytes for pool and prompts: a CPU's whole memory, or what a GPU has free beside GRAPHS."""
    if device.type != "cuda":
        return memory_of(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = torch.cuda.mem_get_info(device)[0] + kept
    return max(free - GRAPHS, free // 2)


def memory_of(device: torch.device) -> int:
    """Bytes of memory that the device has, used or free; sys.maxsize where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):  # Windows has no sysconf
        return sys.maxsize
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
