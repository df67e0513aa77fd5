"""How much memory an engine takes and which requests it serves first. Neither changes with the rung."""

from dataclasses import dataclass
from typing import cast

from labkit.checks import (
    is_number,
    names_its_arguments,
    repr_of_changes,
    require_bool,
    require_positive,
    shown,
)
from labkit.errors import OptionError

FITTED = cast(int, None)  # a size that the engine chooses when it is made: see `labkit.engine.sizes`


@names_its_arguments(
    OptionError,
    {
        "gpu_memory_utilization": "it is memory_share here, of the memory that is free beside the weights",
        "enable_prefix_caching": "it is prefix_cache here",
        "max_model_len": "it is max_positions here",
    },
)
@dataclass(frozen=True)
class CacheConfig:
    """How large the KV pool is, and whether prompts stay in it.

    block_size: tokens per block.
    max_blocks_per_layer: blocks in each layer's pool. None: as many as a full batch of the longest sequences
        needs, within memory_share.
    prefix_cache: keep blocks that were computed for requests that begin the same.
    max_prefix_entries: whole prompts kept at most, each with its logits. With prefixes="blocks" only memory
        bounds what is kept: blocks that nobody needs, until somebody does.
    memory_share: without max_blocks_per_layer, the largest part of the memory that the pool may take, above 0
        and at most 1: on a GPU of what is free beside the weights, on a CPU of the whole. None: 0.9 on a GPU,
        0.25 on a CPU.
    max_positions: tokens of the longest sequence, prompt and answer. None: as many as the model has. Tables
        of blocks are as long, so with a model of 131,072 positions, fewer are faster.
    Raises OptionError for a value of another type or out of range.
    """

    block_size: int = 64
    max_blocks_per_layer: int = FITTED
    prefix_cache: bool = True
    max_prefix_entries: int = 256
    memory_share: float | None = None
    max_positions: int = FITTED

    __repr__ = repr_of_changes

    def __post_init__(self) -> None:
        require_positive(self, "block_size", "max_prefix_entries")
        require_bool(self, "prefix_cache")
        fitted = ("max_blocks_per_layer", "max_positions")
        require_positive(self, *(name for name in fitted if getattr(self, name) is not FITTED))
        share = self.memory_share
        if share is not None and (not is_number(share) or not 0 < share <= 1):
            raise OptionError(f"memory_share must be above 0 and at most 1, not {shown(share)}")


@names_its_arguments(
    OptionError,
    {
        "max_num_seqs": "it is max_batch_size here",
        "max_num_batched_tokens": "it is prefill_max_tokens here",
    },
)
@dataclass(frozen=True)
class SchedulerConfig:
    """How many requests run together, and which of those that wait is admitted next.

    max_batch_size: requests decoded together at most. None: 256 on a GPU, 32 on a CPU.
    prefill_max_batch_size: requests admitted in one step at most, or, from rung 13 on, prompts in one
        chunk. None: max_batch_size.
    prefill_max_tokens: prompt tokens computed in one step at most; a prompt that is longer is
        admitted alone. (From rung 13 on it takes several steps.) None: 2,048 on a CPU; on a GPU up to
        32,768, as the memory beside weights and pool allows.
    admission_policy: "fifo": in order of arrival; "pack": the shortest first among the first
        `pack_window` that wait. No request waits through more than `pack_window` admissions of later ones.
    decode_first: each step decodes all running requests and then admits new ones. Otherwise a step
        that can admit does only that, and the running ones wait for it. From rung 13 on nobody waits: every
        step does both, and this says which it begins with.
    prefill_chunk_tokens: from rung 13 on, prompt tokens computed beside a decode step at most, where
        prefill_max_tokens holds without one; no other rung asks for it. The fewer, the sooner a running
        request has its next token, and the later a new one its first. Where many wait and the batch has
        places for them, it is multiplied by their number over that of those who run, or over 16 if that
        is more.
    Raises OptionError for a size that is not a positive int, a policy that is not listed, or no bool.
    """

    max_batch_size: int = FITTED
    prefill_max_batch_size: int = FITTED
    prefill_max_tokens: int = FITTED
    admission_policy: str = "fifo"
    pack_window: int = 32
    decode_first: bool = False
    prefill_chunk_tokens: int = 512

    __repr__ = repr_of_changes

    def __post_init__(self) -> None:
        fitted = ("max_batch_size", "prefill_max_batch_size", "prefill_max_tokens")
        require_positive(self, *(name for name in fitted if getattr(self, name) is not FITTED))
        require_positive(self, "pack_window", "prefill_chunk_tokens")
        require_bool(self, "decode_first")
        policy = self.admission_policy
        if not isinstance(policy, str) or policy not in ("fifo", "pack"):
            raise OptionError(f"admission_policy = {shown(policy)}; choose 'fifo' or 'pack'")


# The shape of the write-ups' runs, in which lessons and benchmarks count.
EIGHT_AT_A_TIME = SchedulerConfig(max_batch_size=8, prefill_max_batch_size=8, prefill_max_tokens=2048)
