"""Lesson 10: tables of recorded runs."""

from collections.abc import Mapping
from statistics import median

import numpy as np
import pandas as pd

from labkit.results import CostCardRecord, RunsRecord, speedup, speedup_interval


def first_token_table(records: Mapping[str, RunsRecord], before: str, after: str) -> pd.DataFrame:
    """The median time to the first token, a row per record: milliseconds on both rungs, and how many times
    faster."""
    rows = {}
    for label, record in records.items():
        sides = [[median(run.latency.ttft) for run in record.runs_of(rung)] for rung in (before, after)]
        rows[label] = {
            f"TTFT p50, rung {before} (ms)": round(1e3 * median(sides[0]), 2),
            f"rung {after} (ms)": round(1e3 * median(sides[1]), 2),
            "ratio": f"×{speedup(*sides):.3f}",
            "interval": str(speedup_interval(*sides)),
        }
    return pd.DataFrame(rows).T


def streaming_table(records: Mapping[str, RunsRecord]) -> pd.DataFrame:
    """Figures of recorded runs of the streaming command, a row per record, by name: medians over its runs."""
    rows = {}
    for name, record in records.items():
        gaps = [np.percentile(run.gaps_us, (50, 99)) / 1e3 for run in record.runs]
        rows[name] = {
            "tokens/s": f"{median(run.throughput for run in record.runs):,.0f}",
            "ITL p50 (ms)": round(median(p50 for p50, _ in gaps), 2),
            "ITL p99 (ms)": round(median(p99 for _, p99 in gaps), 2),
            "p99 / p50": round(median(p99 / p50 for p50, p99 in gaps), 2),
            "runs": len(gaps),
        }
    return pd.DataFrame(rows).T


def slow_gaps(record: RunsRecord) -> pd.DataFrame:
    """Where the streams of recorded runs paused for more than twice the median gap of their run, a row per
    run and token: how many streams, before which token, and for how long. All requests of a run must have
    made equally many tokens."""
    rows = []
    for number, run in enumerate(record.runs, start=1):
        streams = np.reshape(run.gaps_us, (len(run.new_tokens), -1))  # [stream, gap]
        slow = streams > 2 * np.median(streams)
        for place in slow.any(axis=0).nonzero()[0]:
            pauses = streams[slow[:, place], place]
            rows.append(
                {
                    "run": number,
                    "before token": f"{place + 2} of {streams.shape[1] + 1}",
                    "streams": len(pauses),
                    "pause, median (ms)": round(float(np.median(pauses)) / 1e3, 2),
                    "median gap (ms)": round(float(np.median(streams)) / 1e3, 2),
                }
            )
    return pd.DataFrame(rows).set_index("run")


def card_differences(
    record: CostCardRecord, before: str, after: str
) -> tuple[int, dict[str, list[tuple[int, int]]]]:
    """How many recorded cost cards both rungs have, and for each count that differs, by name, the pairs
    (before, after)."""
    cards = {(s.rung, s.key.model, s.key.prompt_lens): s.card.counts for s in record.samples}
    num_pairs, different = 0, {}
    for (rung, *where), counts in cards.items():
        other = cards.get((after, *where))
        if rung != before or other is None:
            continue
        num_pairs += 1
        for name, count in counts.items():
            if count != other[name]:
                different.setdefault(name, []).append((count, other[name]))
    return num_pairs, different
