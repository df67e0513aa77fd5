"""Lesson 15: the records of all rungs, and of other engines, side by side."""

from collections.abc import Mapping, Sequence

import pandas as pd

from labkit.results import CostCardRecord, PeersRecord, RunsRecord, counts_table

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


def prefill_table(records: Mapping[str, RunsRecord], rungs: Sequence[str]) -> pd.DataFrame:
    """The share of a run that the prefill of its prompts takes: a row per rung, a column per record."""
    return pd.DataFrame(
        {
            name: {rung: f"{100 * record.prefill_share(rung):.1f} %" for rung in rungs}
            for name, record in records.items()
        }
    )


def removed_table(
    record: CostCardRecord, model: str, batch_size: int, lengths: Sequence[int]
) -> pd.DataFrame:
    """What one decode step does on each rung, by the newest recorded cost card of each: a row per rung, a
    column for each count that a lesson removed."""
    found = record.cards(lengths, model)
    cards = {rung: card for (rung, size), card in found.items() if size == batch_size}
    return counts_table(dict(sorted(cards.items())), COUNTS).T.rename_axis("rung")


def peer_notes(record: PeersRecord) -> dict[str, str]:
    """For each other engine, by name, how many times faster labkit's last rung is, with the interval."""
    notes = {}
    for engine in record.engines:
        if engine != record.ours:
            compared = record.comparison(engine, record.ours)
            low, high = compared.interval
            notes[engine] = f"{record.ours}: ×{compared.speedup:.2f} [{low:.2f}, {high:.2f}]"
    return notes


def same_tokens_table(records: Mapping[str, PeersRecord]) -> pd.DataFrame:
    """A row per engine, a column per record: how many requests had the first engine's tokens, in the worst of
    its runs."""
    return pd.DataFrame(
        {
            name: {e: f"{record.same_tokens(e)} of {record.num_requests}" for e in record.engines}
            for name, record in records.items()
        }
    ).fillna("")
