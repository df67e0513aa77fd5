"""How much memory the engine has and whom it serves first. Neither changes with the rung."""

from dataclasses import dataclass

from labkit.checks import require_bool, require_positive, shown
from labkit.errors import OptionError


@dataclass(frozen=True)
class CacheConfig:
    """How large the KV pool is, and whether prompts stay in it.

    block_size: tokens per block.
    max_blocks_per_layer: blocks in each layer's pool; None: as many as a full batch of the longest
        sequences needs.
    prefix_cache: keep finished prompts' blocks for requests that begin the same.
    max_prefix_entries: prompts kept at most.
    Raises OptionError for a value that is not a positive int, or not a bool.
    """

    block_size: int = 64
    max_blocks_per_layer: int | None = None
    prefix_cache: bool = True
    max_prefix_entries: int = 256

    def __post_init__(self) -> None:
        require_positive(self, "block_size", "max_prefix_entries")
        require_bool(self, "prefix_cache")
        if self.max_blocks_per_layer is not None:
            require_positive(self, "max_blocks_per_layer")

    def blocks_per_layer(self, max_batch_size: int, max_positions: int) -> int:
        """Blocks in each layer's pool.

        max_blocks_per_layer if it is given, else enough for max_batch_size sequences of max_positions tokens.
        """
        return self.max_blocks_per_layer or max_batch_size * -(-max_positions // self.block_size)


@dataclass(frozen=True)
class SchedulerConfig:
    """How many requests run together, and which of those that wait is admitted next.

    max_batch_size: requests decoded together at most.
    prefill_max_batch_size: requests admitted in one step at most.
    prefill_max_tokens: prompt tokens computed in one step at most; a prompt that is longer is
        admitted alone. (On rung 13 it is computed over several steps.)
    admission_policy: "fifo": in order of arrival; "pack": the shortest first among the first
        `pack_window` that wait. No request waits through more than `pack_window` admissions of later ones.
    decode_first: each step decodes all running requests and then admits new ones. Otherwise a step
        that can admit does only that, and the running ones wait for it. On rung 13 nobody waits: every step
        does both, and this says which it begins with.
    prefill_chunk_tokens: on rung 13, prompt tokens computed beside a decode step at most, where
        prefill_max_tokens holds without one; no other rung asks for it. The fewer, the sooner a running
        request has its next token, and the later a new one its first.
    Raises OptionError for a number that is not a positive int, a policy that is not listed, or no bool.
    """

    max_batch_size: int = 8
    prefill_max_batch_size: int = 8
    prefill_max_tokens: int = 2048
    admission_policy: str = "fifo"
    pack_window: int = 32
    decode_first: bool = False
    prefill_chunk_tokens: int = 256

    def __post_init__(self) -> None:
        require_positive(self, "max_batch_size", "prefill_max_batch_size", "pack_window")
        require_positive(self, "prefill_max_tokens", "prefill_chunk_tokens")
        require_bool(self, "decode_first")
        policy = self.admission_policy
        if not isinstance(policy, str) or policy not in ("fifo", "pack"):
            raise OptionError(f"admission_policy = {shown(policy)}; choose 'fifo' or 'pack'")
