"""How long the K/V write of one layer takes by itself, in each of its forms."""

from dataclasses import dataclass

import numpy as np

from labkit.results.record import Record, Sample
from labkit.results.typed import Count, Positive, Some


@dataclass(frozen=True)
class AppendTime(Sample):
    """Seconds that one layer's write of new keys and values takes for `batch_size` requests, by measurement.

    path: the form of the write, such as "full_batch".
    """

    path: str
    batch_size: Count
    device_seconds: Some[Positive]  # on the GPU alone, launched by a replayed CUDA graph; on a CPU, all
    host_seconds: Some[Positive]  # to launch it from Python, checks included
    num_bytes: Count  # new keys and values, read once and written once

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


@dataclass(frozen=True)
class AppendTimeRecord(Record):
    """What `python -m labkit.bench kv-append` recorded: an AppendTime per path and batch size."""

    samples: Some[AppendTime]
