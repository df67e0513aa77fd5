"""Counters of what an engine has done, and a snapshot of its state."""

from dataclasses import dataclass, field

from labkit.engine.config import CacheConfig, SchedulerConfig


@dataclass
class EngineCounters:
    """Totals since the engine was made: steps, tokens, preemptions, seconds, finished requests."""

    steps: int = 0
    prefill_tokens: int = 0  # prompt tokens computed, those computed again after a preemption included
    reused_tokens: int = 0  # prompt tokens found in the prefix cache
    decode_steps: int = 0
    generated_tokens: int = 0
    decoded_tokens: int = 0  # of them by decode steps; prefills make the others
    drafted_tokens: int = 0  # that were verified (speculation), and
    accepted_tokens: int = 0  # how many of them were right
    preemptions: int = 0
    prefill_seconds: float = 0.0  # in the parts of steps that gave requests their first token
    decode_seconds: float = 0.0  # in the parts of steps that gave running requests one more
    finished: dict[str, int] = field(default_factory=dict)  # requests by finish reason


@dataclass(frozen=True)
class EngineStats:
    """A snapshot of an engine: the lengths of its queues, its free memory, its counters."""

    waiting: int
    joining: int  # admitted, with their prompts being computed beside the running ones (rung 13)
    running: int
    free_blocks: int  # in the layer that has fewest
    blocks_per_layer: int
    prefix_entries: int
    prefix_evictions: int
    # Decoded tokens, once per block table of their session, by how their block was made ready; and writes.
    append_paths: dict[str, int]
    launch: str  # how the device is asked for a step, and why not by a graph if that is what the options say
    tiles: str  # of the fused products: measured or by rule; or why there are none
    cache: CacheConfig  # with the sizes that were fitted to the model and the device
    scheduler: SchedulerConfig  # likewise
    counters: EngineCounters
