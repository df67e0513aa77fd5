"""What became of a flood: far more requests than the pool has blocks for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, ClassVar

from labkit.results.record import Record, Sample
from labkit.results.typed import Count, Positive, Some, Time

SAMPLED_EVERY = 100  # requests, of memory
SETTLED = 1000  # requests after which memory is flat
GROWTH = 1.01


@dataclass(frozen=True)
class FloodRun(Sample):
    """One flood through one engine: a sample of a FloodRecord.

    ended: requests by how they ended: "length", "cancelled", "left", "refused". checked: of how many the
    tokens were compared with those that they get alone; equal: how many were the same.
    longest_wait: steps until a first admission; nearest_to_bound: the largest share of its bound that a
    wait has taken. memory: bytes of the process, and of a GPU those that PyTorch's allocator has taken, after
    each hundred requests. tensors: those of them that tensors hold, then; empty where they were not counted.
    """

    rung: str
    policy: str
    ended: Mapping[str, Count]
    checked: Count
    equal: Count
    seconds: Positive
    steps: Count
    generated_tokens: Count
    prefill_tokens: Count
    reused_tokens: Count
    preemptions: Count
    prefix_evictions: Count
    num_blocks: Count
    peak_blocks: Count
    peak_waiting: Count
    longest_wait: Count
    nearest_to_bound: Time
    most_passed_over: Count
    memory: tuple[Count, ...]
    tensors: tuple[Count, ...]

    @property
    def num_ended(self) -> int:
        """Requests that have ended, in whatever way."""
        return sum(self.ended.values())

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second of the whole run, prompts included."""
        return self.generated_tokens / self.seconds

    @property
    def memory_growth(self) -> float:
        """Memory at the end beside that after the first thousand requests; 1 where there are no more."""
        return growth_since_settled(self.memory)

    @property
    def tensor_growth(self) -> float:
        """The same of what tensors hold of a GPU."""
        return growth_since_settled(self.tensors)

    @property
    def last_growth(self) -> int:
        """Requests that had ended when memory was last more than it had ever been, by a hundredth; 0 if it
        never was."""
        most = accumulate(self.memory, max)
        grew = [i for i, (before, now) in enumerate(pairwise(most), 1) if now > GROWTH * before]
        return SAMPLED_EVERY * (grew[-1] + 1) if grew else 0


def growth_since_settled(sampled: Sequence[int]) -> float:
    """The last of the numbers beside that after the first thousand requests; 1 where there are no more."""
    settled = sampled[SETTLED // SAMPLED_EVERY - 1 :]
    return settled[-1] / settled[0] if settled else 1.0


@dataclass(frozen=True)
class FloodRecord(Record):
    """What `python -m labkit.bench flood` recorded: a flood for each rung and policy.

    Of its settings, room_for is of how many requests of average size the pool has the blocks.
    """

    samples: Some[FloodRun]

    SETTINGS: ClassVar[dict[str, Any]] = dict.fromkeys(
        ("room_for", "pack_window", "longest_prompt", "max_new_tokens"), Count
    )
