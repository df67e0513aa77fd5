"""What became of random schedules in whose steps something failed."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from labkit.results.record import PlainSample, Record, Sample
from labkit.results.shape import COUNT, TEXT, TIME, Shape


@dataclass(frozen=True)
class RungFaults(PlainSample):
    """The schedules of one rung, counted together: a sample of a FaultsRecord.

    fired: how often each fault came, by where and how. ended: requests by how they ended. gave_up:
    schedules after which the engine said that it cannot go on. fell: each schedule in which something was
    not as promised, with what it was.
    """

    rung: str
    num_points: int  # at which a fault could be planted
    schedules: int
    fired: Mapping[str, int]
    failed_steps: int
    preemptions: int
    ended: Mapping[str, int]
    gave_up: int
    fell: tuple[str, ...]
    cpu_seconds: float

    SHAPE: ClassVar[Shape] = {
        "rung": TEXT,
        "num_points": COUNT,
        "schedules": COUNT,
        "fired": {str: COUNT},
        "failed_steps": COUNT,
        "preemptions": COUNT,
        "ended": {str: COUNT},
        "gave_up": COUNT,
        "fell": [TEXT],
        "cpu_seconds": TIME,
    }


@dataclass(frozen=True)
class FaultsRecord(Record):
    """What `python -m labkit.bench faults` recorded: the schedules of each rung."""

    samples: tuple[RungFaults, ...]

    SAMPLE: ClassVar[type[Sample]] = RungFaults
    SETTINGS: ClassVar[Shape] = {"seed": COUNT}

    @property
    def seed(self) -> int:
        """From which all schedules were drawn."""
        return self.settings["seed"]

    @property
    def num_schedules(self) -> int:
        """Schedules of all rungs together."""
        return sum(sample.schedules for sample in self.samples)

    @property
    def num_fired(self) -> int:
        """Faults that came, of all rungs together."""
        return sum(sum(sample.fired.values()) for sample in self.samples)

    @property
    def ended(self) -> Counter[str]:
        """Requests by how they ended, of all rungs together."""
        total: Counter[str] = Counter()
        for sample in self.samples:
            total.update(sample.ended)
        return total

    @property
    def num_fell(self) -> int:
        """Schedules in which something was not as promised."""
        return sum(len(sample.fell) for sample in self.samples)

    @property
    def num_gave_up(self) -> int:
        """Schedules after which the engine said that it cannot go on."""
        return sum(sample.gave_up for sample in self.samples)
