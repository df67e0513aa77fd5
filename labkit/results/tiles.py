"""Tiles that were measured for a model's products, each beside the one that was taken before."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from labkit.results.record import Record, Sample
from labkit.results.typed import Count, Positive, Some

Numbers = Some[Count]  # block_m, _n, _k, split_k, num_warps, num_stages, and whether there is a ring: 0 or 1


@dataclass(frozen=True)
class TunedTile(Sample):
    """The fastest tile of a product [rows, K] x [K, N]: a sample of a TilesRecord.

    today: the tile that was taken before; if it was as fast, `tile` is the same. seconds: of a launch whose
    weights are not in the GPU's cache, by measurement. num_tried: tiles beside today's.
    """

    product: str
    N: Count
    K: Count
    rows: Count
    today: Numbers
    today_seconds: Some[Positive]
    tile: Numbers
    seconds: Some[Positive]
    num_tried: Count

    @property
    def today_us(self) -> float:
        """Microseconds of a launch with today's tile, the median."""
        return 1e6 * float(np.median(self.today_seconds))

    @property
    def us(self) -> float:
        """Microseconds of a launch with the fastest tile, the median."""
        return 1e6 * float(np.median(self.seconds))

    @property
    def gain(self) -> float:
        """Today's time over the found tile's; 1 where today's stays."""
        return self.today_us / self.us


def tiles_table(samples: tuple[TunedTile, ...]) -> pd.DataFrame:
    """A row per product and number of rows: today's tile, the fastest, and how much faster it is."""
    rows = [
        (
            s.product,
            s.rows,
            *in_words(s.today, s.today_us),
            *in_words(s.tile, s.us),
            f"×{s.gain:.2f}",
            s.num_tried,
        )
        for s in samples
    ]
    columns = ["product", "rows", "today", "µs", "best", "µs", "gain", "tried"]
    return pd.DataFrame(rows, columns=columns).set_index(columns[:2])


def in_words(tile: tuple[int, ...], us: float) -> tuple[str, str]:
    """A tile as "16 x 64 x 128, split 2, 4 warps, 5 stages", and its time."""
    block_m, block_n, block_k, split_k, num_warps, num_stages, *ring = tile
    split = f", split {split_k}" if split_k > 1 else ""
    form = ", ring" if any(ring) else ""
    return (
        f"{block_m} x {block_n} x {block_k}{split}, {num_warps} warps, {num_stages} stages{form}",
        f"{us:.2f}",
    )


@dataclass(frozen=True)
class TilesRecord(Record):
    """What `python -m labkit.bench tune` recorded: a TunedTile per product and number of rows."""

    samples: Some[TunedTile]

    SETTINGS: ClassVar[dict[str, Any]] = {"seconds": Count, "dtype": str}  # of the search, at most
