"""Lesson 05: host time by the parts of a step, here and as recorded, and what it makes one expect."""

from collections.abc import Sequence
from statistics import median

import numpy as np
import pandas as pd
import torch

from labkit.bench import host_engine, in_turn, time_host_steps
from labkit.options import EngineOptions
from labkit.results import Comparison, HostTime, HostTimeRecord, RunsRecord, amdahl


def compare_host(
    before: EngineOptions,
    after: EngineOptions,
    batch_size: int,
    device: torch.device,
    rounds: int = 4,
    num_steps: int = 12,
) -> dict[str, Comparison]:
    """Two engines' host time of a whole step and of its append, measured now, in turn, each run with a
    fresh engine; a sample is the median step of a run."""
    measures = [
        lambda options=options: time_host_steps(host_engine(options, batch_size, device), num_steps)
        for options in (before, after)
    ]
    in_turn(measures, 1)
    sides = in_turn(measures, rounds)

    def compared(part: str) -> Comparison:
        samples = [tuple(median(getattr(run, part)) for run in runs) for runs in sides]
        return Comparison("before", "after", *samples, {}, {})

    return {"step": compared("step_seconds"), "append": compared("append_seconds")}


def host_table(record: HostTimeRecord, before: str, after: str, batch_sizes: Sequence[int]) -> pd.DataFrame:
    """How many times faster the append and the whole step are in a record, a row per batch size."""
    rows = {}
    for b in batch_sizes:
        append, step = record.append_comparison(before, after, b), record.comparison(before, after, b)
        rows[f"B = {b}"] = {
            "append": f"×{append.speedup:.2f}",
            "append, interval": str(append.interval),
            "step": f"×{step.speedup:.2f}",
            "step, interval": str(step.interval),
            "verdict on the step": step.verdict,
        }
    return pd.DataFrame(rows).T


def step_parts(host: HostTime) -> dict[str, float]:
    """Median microseconds of a step's parts on the host: block tables, append, and the rest."""
    return {"block tables": host.tables_us, "append": host.append_us, "the rest": host.rest_us}


def append_line(times: Sequence[HostTime]) -> tuple[float, float]:
    """The append's microseconds per step as a line in the batch size, by least squares: (fixed, per
    request)."""
    sizes = [time.batch_size for time in times]
    per_request, fixed = np.polyfit(sizes, [time.append_us for time in times], 1)
    return float(fixed), float(per_request)


def amdahl_table(record: HostTimeRecord, before: str, after: str, batch_sizes: Sequence[int]) -> pd.DataFrame:
    """What the faster append should make of the step by Amdahl's law, and what was measured, a row per batch
    size."""
    rows = {}
    for b in batch_sizes:
        parts = step_parts(record.time(before, b))
        share = parts["append"] / sum(parts.values())
        ratio = record.append_comparison(before, after, b).speedup
        rows[f"B = {b}"] = {
            "append, share of the step": f"{share:.0%}",
            "append": f"×{ratio:.2f}",
            "step by Amdahl's law": f"×{amdahl(share, ratio):.2f}",
            "step as measured": f"×{record.comparison(before, after, b).speedup:.2f}",
            "step if the append took no time": f"×{amdahl(share, float('inf')):.2f}",
        }
    return pd.DataFrame(rows).T


def expected_end_to_end(
    runs: RunsRecord, host: HostTimeRecord, before: str, after: str
) -> dict[str, str | float]:
    """What the append saves without the model (`host`), off the step with it (`runs`)."""
    append = host.append_comparison(before, after, runs.max_batch_size)
    saved = 1e3 * (median(append.before_samples) - median(append.after_samples))
    step, measured = 1e-3 * runs.step_us(before), runs.comparison(before, after)
    return {
        f"step of rung {before} (ms)": round(step, 2),
        "saved in the append (ms)": round(saved, 2),
        "expected": f"×{step / (step - saved):.3f}",
        "measured": f"×{measured.speedup:.3f}",
        "interval": str(measured.interval),
    }
