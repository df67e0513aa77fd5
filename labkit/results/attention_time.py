"""How long one layer's attention takes by itself, with one program per request and head and with several."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np

from labkit.results.record import Record, Sample
from labkit.results.shape import COUNT, POSITIVE, TEXT, Shape

ONE_PROGRAM, SPLIT = "one_program", "split"  # kernels


@dataclass(frozen=True)
class AttentionTime:
    """Seconds of one layer's attention and write, one per measurement; on a GPU launched by a graph."""

    kernel: str  # ONE_PROGRAM or SPLIT
    batch_size: int
    context_len: int
    splits: int
    seconds: tuple[float, ...]
    num_bytes: int  # of keys and values in the cache, read once

    SHAPE: ClassVar[Shape] = {
        "kernel": TEXT,
        "batch_size": COUNT,
        "context_len": COUNT,
        "splits": COUNT,
        "us": POSITIVE,
        "num_bytes": COUNT,
        "seconds": [POSITIVE, ...],
        "copy_bytes_per_second": POSITIVE,
    }

    @property
    def us(self) -> float:
        """Microseconds, the median."""
        return 1e6 * float(np.median(self.seconds))

    @property
    def rate(self) -> float:
        """Bytes of keys and values per second."""
        return self.num_bytes / float(np.median(self.seconds))

    def to_dict(self) -> dict:
        """For a record; `from_dict` is the way back."""
        return {**asdict(self), "us": self.us}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        fields = {name: raw[name] for name in ("kernel", "batch_size", "context_len", "splits", "num_bytes")}
        return cls(**fields, seconds=tuple(raw["seconds"]))


@dataclass(frozen=True)
class AttentionTimeRecord(Record):
    """A record of `attention`. On disk each sample repeats the copy bandwidth."""

    samples: tuple[AttentionTime, ...]

    SAMPLE: ClassVar[type[Sample]] = AttentionTime

    def to_dict(self) -> dict:
        raw = super().to_dict()
        for sample in raw["samples"]:
            sample["copy_bytes_per_second"] = self.bandwidth
        return raw
