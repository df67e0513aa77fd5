"""What became of a flood: far more requests than the pool has blocks for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import ClassVar

from labkit.results.record import PlainSample, Record, Sample, of_rung
from labkit.results.shape import COUNT, TEXT, TIME, Shape

SAMPLED_EVERY = 100  # requests, of memory
SETTLED = 1000  # requests after which memory is flat
GROWTH = 1.01


@dataclass(frozen=True)
class FloodRun(PlainSample):
    """One flood through one engine: a sample of a FloodRecord.

    ended: requests by how they ended: "length", "cancelled", "left", "refused". checked: of how many the
    tokens were compared with those that they get alone; equal: how many were the same.
    longest_wait: steps until a first admission; nearest_to_bound: the largest share of its bound that a
    wait has taken. memory: bytes of the process, and of a GPU those that PyTorch's allocator has taken, after
    each hundred requests. tensors: those of them that tensors hold, then; empty where they were not counted.
    """

    rung: str
    policy: str
    ended: Mapping[str, int]
    checked: int
    equal: int
    seconds: float
    steps: int
    generated_tokens: int
    prefill_tokens: int
    reused_tokens: int
    preemptions: int
    prefix_evictions: int
    num_blocks: int
    peak_blocks: int
    peak_waiting: int
    longest_wait: int
    nearest_to_bound: float
    most_passed_over: int
    memory: tuple[int, ...]
    tensors: tuple[int, ...]

    SHAPE: ClassVar[Shape] = {
        "rung": TEXT,
        "policy": TEXT,
        "ended": {str: COUNT},
        "checked": COUNT,
        "equal": COUNT,
        "seconds": TIME,
        "steps": COUNT,
        "generated_tokens": COUNT,
        "prefill_tokens": COUNT,
        "reused_tokens": COUNT,
        "preemptions": COUNT,
        "prefix_evictions": COUNT,
        "num_blocks": COUNT,
        "peak_blocks": COUNT,
        "peak_waiting": COUNT,
        "longest_wait": COUNT,
        "nearest_to_bound": TIME,
        "most_passed_over": COUNT,
        "memory": [COUNT],
        "tensors": [COUNT],
    }

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
    """What `python -m labkit.bench flood` recorded: a flood for each rung and policy."""

    samples: tuple[FloodRun, ...]

    SAMPLE: ClassVar[type[Sample]] = FloodRun
    SETTINGS: ClassVar[Shape] = {
        "room_for": COUNT,
        "pack_window": COUNT,
        "longest_prompt": COUNT,
        "max_new_tokens": COUNT,
    }

    @property
    def device(self) -> str:
        """Where the engine ran, "cpu" or "cuda"."""
        return "cpu" if self.host.driver is None else "cuda"

    @property
    def room_for(self) -> int:
        """Requests of average size whose blocks the pool has."""
        return self.settings["room_for"]

    @property
    def pack_window(self) -> int:
        """The most admissions of later ones that a request waits through, under the policy "pack"."""
        return self.settings["pack_window"]

    @property
    def longest_prompt(self) -> int:
        """The most tokens of a prompt that is not refused."""
        return self.settings["longest_prompt"]

    @property
    def max_new_tokens(self) -> int:
        """The most tokens that a request makes."""
        return self.settings["max_new_tokens"]

    def runs_of(self, rung: str) -> list[FloodRun]:
        """The floods of a rung. Raises RecordError if there is none."""
        return of_rung(self.samples, rung)
