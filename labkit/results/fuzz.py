"""What became of damaged files."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from labkit.results.record import Record, Sample
from labkit.results.typed import Count, Some, Time


@dataclass(frozen=True)
class FuzzedTarget(Sample):
    """The cases of one thing that reads files, counted together: a sample of a FuzzRecord.

    read: cases whose files were read. errors: cases by the name of the error that refused their files.
    fell: each case in which anything else came, with what it was. cpu_seconds: of all cases; slowest: of one.
    """

    target: str
    read: Count
    errors: Mapping[str, Count]
    fell: tuple[str, ...]
    cpu_seconds: Time
    slowest: Time

    @property
    def num_refused(self) -> int:
        """Cases whose files were refused."""
        return sum(self.errors.values())

    @property
    def num_cases(self) -> int:
        """Cases, however they ended."""
        return self.read + self.num_refused + len(self.fell)


@dataclass(frozen=True)
class FuzzRecord(Record):
    """What `python -m labkit.bench fuzz` recorded: the damaged files of each target."""

    samples: Some[FuzzedTarget]

    SETTINGS: ClassVar[dict[str, Any]] = {
        "seed": Count,
        "limit_seconds": Time,
        "limit_memory": Count,
        "memory": tuple[Count, ...],
    }

    @property
    def memory_growth(self) -> float:
        """Memory of the process at the end beside that after its first thousand cases; 1 if unknown."""
        memory = self.settings["memory"]
        return memory[-1] / memory[0] if memory and memory[0] else 1.0
