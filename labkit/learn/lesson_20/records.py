"""Lesson 20: tables of records, and the gap to the limit."""

from collections.abc import Mapping, Sequence

import pandas as pd

from labkit.bench.limit import on_paper, step_limit
from labkit.results import CostCardRecord, PeersRecord, TracedStep, counts_table
from labkit.results.kernels import ATTENTION, HEAD, LAYERS, part_counts, part_us

# --- the records of all rungs, and of other engines, side by side --------------------------------------

# Counts of a cost card that a lesson removed: their names in a table.
COUNTS = {
    "manager_calls": "calls into the manager",
    "kv_block_infos": "records created",
    "index_tensors": "index tensors",
    "aten_ops": "operators",
    "kernels": "kernels",
    "h2d_copies": "copies to the GPU",
    "h2d_synchronizing": "of them, waited for",
    "synchronizations": "times the host waits",
}


def removed_table(
    record: CostCardRecord, model: str, batch_size: int, lengths: Sequence[int]
) -> pd.DataFrame:
    """What one decode step does on each rung, by the newest recorded cost card of each: a row per rung, a
    column for each count that a lesson removed."""
    found = record.cards(lengths, model)
    cards = {rung: card for (rung, size), card in found.items() if size == batch_size}
    return counts_table(dict(sorted(cards.items())), COUNTS).T.rename_axis("rung")


def same_tokens_table(records: Mapping[str, PeersRecord]) -> pd.DataFrame:
    """A row per engine, a column per record: how many requests had the first engine's tokens, in the worst of
    its runs."""
    return pd.DataFrame(
        {
            name: {e: f"{record.same_tokens(e)} of {record.num_requests}" for e in record.engines}
            for name, record in records.items()
        }
    ).fillna("")


# --- the parts of a recorded step, and how far each is from the least that it can take -----------------


def step_floors(step: TracedStep, bandwidth: float) -> dict[str, float]:
    """Microseconds that the bytes of each part of a step take at this bandwidth, in bytes per second; their
    sum is the limit of the step."""
    gpt2, limit = on_paper(), step_limit(step.batch_size, step.context_len, bandwidth)
    head = gpt2.lm_head.weight.numel() * gpt2.wte.weight.element_size()
    num_bytes = {ATTENTION: limit.kv_bytes, LAYERS: limit.weight_bytes - head, HEAD: head}
    return {part: 1e6 * n / bandwidth for part, n in num_bytes.items()}


def kernels_table(step: TracedStep, bandwidth: float) -> pd.DataFrame:
    """A row per part with a floor: how many kernels it has in a step, and the microseconds of one, on average
    and at least."""
    parts, counts = part_us(step), part_counts(step)
    rows = {
        part: {
            "kernels per step": round(counts[part]),
            "µs each": round(parts[part] / counts[part], 1),
            "at the limit": round(floor / counts[part], 1),
        }
        for part, floor in step_floors(step, bandwidth).items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")
