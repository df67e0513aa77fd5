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
    """Seconds that one layer's attention and K/V write take, by measurement; on a GPU launched by a graph.

    Each of `batch_size` requests has `context_len` tokens in the cache; `splits` programs work per request
    and head.
    """

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
        """Microseconds of the attention and the write, the median."""
        return 1e6 * float(np.median(self.seconds))

    @property
    def rate(self) -> float:
        """Bytes of keys and values read per second, at the median."""
        return self.num_bytes / float(np.median(self.seconds))

    def to_dict(self) -> dict:
        """The JSON form, in which a record holds it; `from_dict` reads it."""
        return {**asdict(self), "us": self.us}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """A measurement from its JSON form, checked before against `SHAPE`."""
        fields = {name: raw[name] for name in ("kernel", "batch_size", "context_len", "splits", "num_bytes")}
        return cls(**fields, seconds=tuple(raw["seconds"]))


@dataclass(frozen=True)
class AttentionTimeRecord(Record):
    """What `python -m labkit.bench attention` recorded: an AttentionTime per kernel, batch size and length.

    In JSON each sample repeats the copy bandwidth.
    """

    samples: tuple[AttentionTime, ...]

    SAMPLE: ClassVar[type[Sample]] = AttentionTime

    def to_dict(self) -> dict:
        """The JSON form of the record, with the copy bandwidth in each sample."""
        raw = super().to_dict()
        for sample in raw["samples"]:
            sample["copy_bytes_per_second"] = self.bandwidth
        return raw
