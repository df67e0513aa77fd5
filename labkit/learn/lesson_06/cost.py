"""Lesson 06: recorded counts and times of a step, in tables."""

from collections.abc import Sequence
from statistics import median

import numpy as np
import pandas as pd

from labkit.results import CostCardRecord, HostTimeRecord, StepProfile, counts_table

COUNTS = {  # counts of a cost card: their words in a table
    "index_tensors": "index tensors constructed",
    "h2d_copies": "host-to-device copies",
    "h2d_bytes": "host-to-device bytes",
    "h2d_synchronizing": "of the copies, synchronizing",
    "d2h_copies": "device-to-host copies",
    "synchronizations": "the host waits for the GPU",
    "manager_calls": "calls into KVBlockManager",
    "kernels": "kernels launched",
}


def recorded_counts(
    record: CostCardRecord, rungs: Sequence[str], batch_size: int, lengths: set[int]
) -> pd.DataFrame:
    """COUNTS of GPT-2's recorded decode step, a column per rung. lengths: of the prompts."""
    cards = record.cards(lengths)
    return counts_table({f"rung {rung}": cards[rung, batch_size] for rung in rungs}, COUNTS)


PARTS = ("block tables", "append", "the rest")  # of the host's step, up to rung 05
RESIDENT_PARTS = ("send state", "make room", "the rest")  # of the host's step, from rung 06 on


def host_parts(record: HostTimeRecord, rungs: Sequence[str], batch_sizes: Sequence[int]) -> pd.DataFrame:
    """Median microseconds of a step's parts on the host, a row per rung and part, a column per batch size."""
    table: dict[str, dict] = {f"B = {b}": {} for b in batch_sizes}
    for rung in rungs:
        names = RESIDENT_PARTS if rung >= "06" else PARTS
        for b in batch_sizes:
            time = record.time(rung, b)
            lanes = (time.tables_us, time.append_us, time.rest_us, time.step_us)
            for name, us in zip((*names, "a step"), lanes, strict=True):
                table[f"B = {b}"][f"rung {rung}", name] = us
    return pd.DataFrame(table).round().astype(int).rename_axis(columns="microseconds")


def copy_costs(profile: StepProfile) -> dict[str, float]:
    """The small host-to-device copies of a profiled step: how many, the median time of one on the GPU, and
    the median time from the start of one to that of the next."""
    copies = sorted((k for k in profile.kernels if k.name.startswith("Memcpy HtoD")), key=lambda k: k.start)
    small = copies[1:]  # the first is the block tables'
    return {
        "small copies": len(small),
        "us of the GPU, each": round(median(copy.duration for copy in small), 1),
        "us from one to the next": round(float(np.median(np.diff([copy.start for copy in small]))), 1),
    }
