"""How long kernels of one layer take by themselves: the K/V write in each of its forms, and attention."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from labkit.results.record import Record, Sample
from labkit.results.typed import Count, Positive, Some

ONE_PROGRAM, SPLIT = "one_program", "split"  # kernels of attention


def median_us(seconds: Some[Positive]) -> float:
    """Microseconds, the median."""
    return 1e6 * float(np.median(seconds))


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
        return median_us(self.device_seconds)

    @property
    def host_us(self) -> float:
        """Microseconds that the host takes to launch the write, the median."""
        return median_us(self.host_seconds)

    @property
    def rate(self) -> float:
        """Bytes moved per second."""
        return self.num_bytes / float(np.median(self.device_seconds))


@dataclass(frozen=True)
class AppendTimeRecord(Record):
    """What `python -m labkit.bench kv-append` recorded: an AppendTime per path and batch size."""

    samples: Some[AppendTime]


@dataclass(frozen=True)
class AttentionTime(Sample):
    """Seconds that one layer's attention and K/V write take, by measurement; on a GPU launched by a graph.

    Each of `batch_size` requests has `context_len` tokens in the cache; `splits` programs work per request
    and head.
    """

    kernel: str  # ONE_PROGRAM or SPLIT
    batch_size: Count
    context_len: Count
    splits: Count
    seconds: Some[Positive]
    num_bytes: Count  # of keys and values in the cache, read once

    ALSO: ClassVar[tuple[str, ...]] = ("us",)

    @property
    def us(self) -> float:
        """Microseconds of the attention and the write, the median."""
        return median_us(self.seconds)

    @property
    def rate(self) -> float:
        """Bytes of keys and values read per second, at the median."""
        return self.num_bytes / float(np.median(self.seconds))


@dataclass(frozen=True)
class AttentionTimeRecord(Record):
    """What `python -m labkit.bench attention` recorded: an AttentionTime per kernel, batch size and length.

    In JSON each sample repeats the copy bandwidth.
    """

    samples: Some[AttentionTime]

    def to_dict(self) -> dict:
        """The JSON form of the record, with the copy bandwidth in each sample."""
        raw = super().to_dict()
        for sample in raw["samples"]:
            sample["copy_bytes_per_second"] = self.bandwidth
        return raw
