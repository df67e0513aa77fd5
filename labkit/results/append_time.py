"""How long the K/V write of one layer takes by itself, in each of its forms."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np

from labkit.results.record import Record, Sample
from labkit.results.shape import COUNT, POSITIVE, TEXT, Shape


@dataclass(frozen=True)
class AppendTime:
    """Seconds that one layer's write of new keys and values takes for `batch_size` requests, by measurement.

    path: the form of the write, such as "full_batch".
    """

    path: str
    batch_size: int
    device_seconds: tuple[float, ...]  # on the GPU alone, launched by a replayed CUDA graph; on a CPU, all
    host_seconds: tuple[float, ...]  # to launch it from Python, checks included
    num_bytes: int  # new keys and values, read once and written once

    SHAPE: ClassVar[Shape] = {
        "path": TEXT,
        "batch_size": COUNT,
        "device_seconds": [POSITIVE, ...],
        "host_seconds": [POSITIVE, ...],
        "num_bytes": COUNT,
    }

    @property
    def device_us(self) -> float:
        """Microseconds of the write on the GPU, the median; on a CPU, all of the call."""
        return 1e6 * float(np.median(self.device_seconds))

    @property
    def host_us(self) -> float:
        """Microseconds that the host takes to launch the write, the median."""
        return 1e6 * float(np.median(self.host_seconds))

    @property
    def rate(self) -> float:
        """Bytes moved per second."""
        return self.num_bytes / float(np.median(self.device_seconds))

    def to_dict(self) -> dict:
        """The JSON form, in which a record holds it; `from_dict` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """A measurement from its JSON form, checked before against `SHAPE`."""
        seconds = {name: tuple(raw[name]) for name in ("device_seconds", "host_seconds")}
        return cls(raw["path"], raw["batch_size"], **seconds, num_bytes=raw["num_bytes"])


@dataclass(frozen=True)
class AppendTimeRecord(Record):
    """What `python -m labkit.bench kv-append` recorded: an AppendTime per path and batch size."""

    samples: tuple[AppendTime, ...]

    SAMPLE: ClassVar[type[Sample]] = AppendTime
