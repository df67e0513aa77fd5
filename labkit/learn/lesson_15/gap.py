"""Lesson 15: the parts of a recorded step, and how far each is from the least that it can take."""

import pandas as pd

from labkit.bench import DecodeLimit
from labkit.bench.limit import on_paper, step_limit
from labkit.results import TracedStep
from labkit.results.kernels import ATTENTION, HEAD, LAYERS, part_counts, part_us


def limit_of(step: TracedStep, bandwidth: float) -> DecodeLimit:
    """The least time that a recorded step of GPT-2 can take at this bandwidth, in bytes per second."""
    return step_limit(step.batch_size, step.context_len, bandwidth)


def step_floors(step: TracedStep, bandwidth: float) -> dict[str, float]:
    """Microseconds that the bytes of each part of a step take at this bandwidth, in bytes per second; their
    sum is the limit of the step."""
    gpt2, limit = on_paper(), limit_of(step, bandwidth)
    head = gpt2.lm_head.weight.numel() * gpt2.wte.weight.element_size()
    num_bytes = {ATTENTION: limit.kv_bytes, LAYERS: limit.weight_bytes - head, HEAD: head}
    return {part: 1e6 * n / bandwidth for part, n in num_bytes.items()}


def gap_table(step: TracedStep, bandwidth: float) -> pd.DataFrame:
    """A row per part of a recorded step: its microseconds, the least that it could take, and its share of the
    gap between the two."""
    parts, floors = part_us(step), step_floors(step, bandwidth)
    gap = sum(parts.values()) - sum(floors.values())
    rows = {
        part: {
            "us": round(us, 1),
            "at the limit": round(floors.get(part, 0.0), 1),
            "% of the copy bandwidth": f"{100 * floors[part] / us:.0f}" if part in floors else "",
            "% of the gap": f"{100 * (us - floors.get(part, 0.0)) / gap:.0f}",
        }
        for part, us in parts.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def kernels_table(step: TracedStep, bandwidth: float) -> pd.DataFrame:
    """A row per part with a floor: how many kernels it has in a step, and the microseconds of one, on average
    and at least."""
    parts, counts = part_us(step), part_counts(step)
    rows = {
        part: {
            "kernels per step": round(counts[part]),
            "us each": round(parts[part] / counts[part], 1),
            "at the limit": round(floor / counts[part], 1),
        }
        for part, floor in step_floors(step, bandwidth).items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")
