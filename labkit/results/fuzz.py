"""What became of damaged files."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from labkit.results.record import PlainSample, Record, Sample
from labkit.results.shape import COUNT, TEXT, TIME, Shape


@dataclass(frozen=True)
class FuzzedTarget(PlainSample):
    """The cases of one thing that reads files, counted together: a sample of a FuzzRecord.

    read: cases whose files were read. errors: cases by the name of the error that refused their files.
    fell: each case in which anything else came, with what it was. cpu_seconds: of all cases; slowest: of one.
    """

    target: str
    read: int
    errors: Mapping[str, int]
    fell: tuple[str, ...]
    cpu_seconds: float
    slowest: float

    SHAPE: ClassVar[Shape] = {
        "target": TEXT,
        "read": COUNT,
        "errors": {str: COUNT},
        "fell": [TEXT],
        "cpu_seconds": TIME,
        "slowest": TIME,
    }

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

    samples: tuple[FuzzedTarget, ...]

    SAMPLE: ClassVar[type[Sample]] = FuzzedTarget
    SETTINGS: ClassVar[Shape] = {
        "seed": COUNT,
        "limit_seconds": TIME,
        "limit_memory": COUNT,
        "memory": [COUNT],
    }

    @property
    def seed(self) -> int:
        """From which all cases were drawn."""
        return self.settings["seed"]

    @property
    def num_cases(self) -> int:
        """Cases of all targets together."""
        return sum(sample.num_cases for sample in self.samples)

    @property
    def num_fell(self) -> int:
        """Cases in which files were neither read nor refused."""
        return sum(len(sample.fell) for sample in self.samples)

    @property
    def slowest(self) -> float:
        """CPU seconds of the slowest case."""
        return max(sample.slowest for sample in self.samples)

    @property
    def memory_growth(self) -> float:
        """Memory of the process at the end beside that after its first thousand cases; 1 if unknown."""
        memory = self.settings["memory"]
        return memory[-1] / memory[0] if memory and memory[0] else 1.0
