"""Lesson 09: what was recorded of both rungs, and steps timed in turn."""

from collections.abc import Mapping, Sequence
from statistics import median

import pandas as pd

from labkit.bench import in_turn, time_decode_steps
from labkit.engine import InferenceEngine
from labkit.results import Comparison, DeviceTimeRecord, TracedStep
from labkit.results.kernels import ATTENTION, PRODUCTS, SPLIT_K_SUMS, group_us, slowest_single
from labkit.watch import steady_decode

# --- recorded steps and recorded attention, as tables --------------------------------------------------


def recorded_steps(
    record: DeviceTimeRecord, rungs: Sequence[str] = ("08", "09")
) -> dict[tuple[int, str], TracedStep]:
    """The recorded steps of these rungs by (batch size, rung), in order."""
    of_rungs = {(step.batch_size, rung): step for (rung, _), step in record.steps.items() if rung in rungs}
    return dict(sorted(of_rungs.items()))


def share_of_small_ones(step: TracedStep) -> float:
    """The share of a step's GPU time in kernels that are neither a matrix product nor attention."""
    us = group_us(step)
    return 1 - (us[PRODUCTS] + us[ATTENTION]) / sum(us.values())


def gain_table(record: DeviceTimeRecord) -> pd.DataFrame:
    """Microseconds of both rungs' steps by what they are for, the output layer apart, a column per batch
    size."""
    steps = recorded_steps(record)
    columns: dict[str, dict[str, float]] = {}
    for (size, rung), step in steps.items():
        us, head = group_us(step), slowest_single(step).us
        layers = us[PRODUCTS] + us[SPLIT_K_SUMS] - head
        rest = sum(us.values()) - layers - head - us[ATTENTION]
        rows = {
            "layers' products": layers,
            "output layer": head,
            "attention": us[ATTENTION],
            "the rest": rest,
        }
        column = columns.setdefault(f"B = {size}", {})
        column.update({f"{name}, {rung}": round(value) for name, value in rows.items()})
    for size in {size for size, _ in steps}:
        before, after = (steps[size, rung].gpu_busy_us for rung in ("08", "09"))
        columns[f"B = {size}"]["GPU busy, times less"] = round(before / after, 2)
    table = pd.DataFrame(columns)
    parts = [*rows, "GPU busy"]
    order = sorted(table.index, key=lambda name: parts.index(name.split(",")[0]))
    return table.loc[order].map("{:g}".format).rename_axis("microseconds, rung")


# --- how long a step takes on a GPU, of engines in turn ------------------------------------------------

NUM_STEPS = 24  # of a run


def compare_steps(
    engines: Mapping[str, InferenceEngine], prompts: Sequence[Sequence[int]], rounds: int = 5
) -> dict[str, Comparison]:
    """How much faster than the first engine's each other engine's decode step is, by name; the runs were made
    in turn."""

    def run(engine: InferenceEngine) -> float:
        with steady_decode(engine, prompts):
            return median(time_decode_steps(engine, NUM_STEPS))

    runs = in_turn([lambda e=e: run(e) for e in engines.values()], rounds)
    (before, first), *others = zip(engines, map(tuple, runs), strict=True)
    return {name: Comparison(before, name, first, after, {}, {}) for name, after in others}
