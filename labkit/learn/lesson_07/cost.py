"""Lesson 07: cost cards, host time and recorded runs of its two rungs."""

from collections.abc import Mapping, Sequence

import pandas as pd

from labkit.results import CostCardRecord, HostTime, counts_table
from labkit.results.cost_cards import DEVICE_ROWS

CARD_ROWS = {  # counts of a cost card: their words in a table
    "aten_ops": "aten operators dispatched",
    **dict(
        zip(
            ("kernels", "h2d_copies", "h2d_bytes", "d2h_copies", "synchronizations"),
            (DEVICE_ROWS[i] for i in (0, 1, 2, 4, 5)),
            strict=True,
        )
    ),
}


def recorded_cards(record: CostCardRecord, rungs: Sequence[str], batch_sizes: Sequence[int]) -> pd.DataFrame:
    """Counts of GPT-2's recorded decode step, with requests at differing positions, a column per batch size
    and rung."""
    cards = record.cards(lengths=(20, 23))
    return counts_table(
        {(f"B = {b}", f"rung {n}"): cards[n, b] for b in batch_sizes for n in rungs}, CARD_ROWS
    )


def step_parts(host: HostTime) -> dict[str, float]:
    """Median microseconds of a resident decode step's parts on the host: reserve, tell the device, launch and
    the rest."""
    return {
        "reserve": host.append_us,
        "tell the device": host.tables_us,
        "launch and the rest": host.rest_us,
    }


def savings(before: HostTime, after: HostTime, store_us: float) -> dict[str, float]:
    """Where the microseconds that rung 07 saves the host come from, of a step of rung 06 and one of rung 07.

    store_us: what the launch of one layer's store takes, recorded by itself.
    """
    saved = {part: us - step_parts(after)[part] for part, us in step_parts(before).items()}
    stores = before.num_layers * store_us
    return {
        "one table": saved["reserve"] + saved["tell the device"],
        f"{before.num_layers} stores": stores,
        "the rest, with begin": saved["launch and the rest"] - stores,
    }


def ladder_table(records: Mapping[str, dict], before: str, after: str) -> pd.DataFrame:
    """Two rungs in each of some records of `ladder`, a row per record, by label: median decode tokens per
    second, and how they compare."""
    rows = {}
    for label, record in records.items():
        compared = record.comparison(before, after, path="fused")
        rows[label] = {
            f"rung {before}": f"{record.rate(before):,.0f}",
            f"rung {after}": f"{record.rate(after):,.0f}",
            "of the limit": f"{100 * record.share_of_limit(after):.1f} %",
            "speed-up": f"×{compared.speedup:.3f}",
            "interval": str(compared.interval),
            "verdict": compared.verdict,
        }
    return pd.DataFrame(rows).T.rename_axis(columns="decode tokens/s, H100")
