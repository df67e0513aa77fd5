"""How long kernels take by themselves: the K/V write in each of its forms, attention, and measured tiles."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

ONE_PROGRAM, SPLIT = "one_program", "split"  # kernels of attention


def median_us(seconds: Sequence[float] | np.ndarray) -> float:
    """Microseconds, the median."""
    return 1e6 * float(np.median(seconds))


@dataclass(frozen=True)
class AppendTime:
    """Seconds that one layer's write of new keys and values takes for `batch_size` requests, by measurement.

    path: the form of the write, such as "full_batch".
    """

    path: str
    batch_size: int
    device_seconds: tuple[float, ...]  # on the GPU alone, launched by a replayed CUDA graph
    host_seconds: tuple[float, ...]  # to launch it from Python, checks included
    num_bytes: int  # new keys and values, read once and written once

    @property
    def device_us(self) -> float:
        """Microseconds of the write on the GPU, the median."""
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
class AttentionTime:
    """Seconds that one layer's attention and K/V write take, by measurement, launched by a CUDA graph."""

    kernel: str  # ONE_PROGRAM or SPLIT
    batch_size: int
    context_len: int  # tokens in the cache, of each request
    splits: int  # programs per request and head
    seconds: tuple[float, ...]
    num_bytes: int  # of keys and values in the cache, read once

    @property
    def us(self) -> float:
        """Microseconds of the attention and the write, the median."""
        return median_us(self.seconds)

    @property
    def rate(self) -> float:
        """Bytes of keys and values read per second, at the median."""
        return self.num_bytes / float(np.median(self.seconds))


@dataclass(frozen=True)
class TunedTile:
    """The fastest tile of a product [rows, K] x [K, N].

    today: the tile that was taken before; if it was as fast, `tile` is the same. seconds: of a launch whose
    weights are not in the GPU's cache, by measurement. num_tried: tiles beside today's.
    """

    product: str
    N: int
    K: int
    rows: int
    today: tuple[int, ...]  # the fields of a `Tile`
    today_seconds: tuple[float, ...]
    tile: tuple[int, ...]
    seconds: tuple[float, ...]
    num_tried: int

    @property
    def us(self) -> float:
        """Microseconds of a launch with the fastest tile, the median."""
        return median_us(self.seconds)

    @property
    def gain(self) -> float:
        """Today's time over the found tile's; 1 where today's stays."""
        return median_us(self.today_seconds) / self.us


def tiles_table(samples: Sequence[TunedTile]) -> pd.DataFrame:
    """A row per product and number of rows: today's tile, the fastest, and how much faster it is."""
    rows = []
    for s in samples:
        times = (f"{median_us(seconds):.2f}" for seconds in (s.today_seconds, s.seconds))
        today, best = zip(map(in_words, (s.today, s.tile)), times, strict=True)
        rows.append((s.product, s.rows, *today, *best, f"×{s.gain:.2f}", s.num_tried))
    columns = ["product", "rows", "today", "µs", "best", "µs", "gain", "tried"]
    return pd.DataFrame(rows, columns=columns).set_index(columns[:2])


def in_words(tile: tuple[int, ...]) -> str:
    """A tile as "16 x 64 x 128, split 2, 4 warps, 5 stages"."""
    block_m, block_n, block_k, split_k, num_warps, num_stages, *ring = tile
    split = f", split {split_k}" if split_k > 1 else ""
    form = ", ring" if any(ring) else ""
    return f"{block_m} x {block_n} x {block_k}{split}, {num_warps} warps, {num_stages} stages{form}"
