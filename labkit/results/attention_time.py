"""How long one layer's attention takes by itself, with one program per request and head and with several."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from labkit.results.record import Record, Sample
from labkit.results.typed import Count, Positive, Some

ONE_PROGRAM, SPLIT = "one_program", "split"  # kernels


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
        return 1e6 * float(np.median(self.seconds))

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
