"""What became of random schedules in whose steps something failed."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from labkit.results.record import Record, Sample
from labkit.results.typed import Count, Some, Time


@dataclass(frozen=True)
class RungFaults(Sample):
    """The schedules of one rung, counted together: a sample of a FaultsRecord.

    fired: how often each fault came, by where and how. ended: requests by how they ended. gave_up:
    schedules after which the engine said that it cannot go on. fell: each schedule in which something was
    not as promised, with what it was.
    """

    rung: str
    num_points: int  # at which a fault could be planted
    schedules: Count
    fired: Mapping[str, Count]
    failed_steps: Count
    preemptions: Count
    ended: Mapping[str, Count]
    gave_up: Count
    fell: tuple[str, ...]
    cpu_seconds: Time


@dataclass(frozen=True)
class FaultsRecord(Record):
    """What `python -m labkit.bench faults` recorded: the schedules of each rung."""

    samples: Some[RungFaults]

    SETTINGS: ClassVar[dict[str, Any]] = {"seed": Count}  # from which all schedules were drawn

    @property
    def ended(self) -> Counter[str]:
        """Requests by how they ended, of all rungs together."""
        total: Counter[str] = Counter()
        for sample in self.samples:
            total.update(sample.ended)
        return total
