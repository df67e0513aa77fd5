"""The figures of RELIABILITY.md, from the records of the last full runs of `python tests/soak`.

Their samples are read as they are in the files: what they hold, tests/soak says, which writes them.
"""

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from labkit.results import Record, load

FAULTS_RECORDS = ("faults_cpu", "faults_h100")
HTTP_FLOOD_RECORD = "http_flood_cpu"
FLOOD_RECORDS = ("flood_fifo_cpu", "flood_pack_cpu", "flood_fifo_h100", "flood_pack_h100")


def faults_table() -> pd.DataFrame:
    """A row per run of random schedules in which calls fail."""
    rows = {}
    for record in map(load, FAULTS_RECORDS):
        rungs = record.samples
        ended = sum((Counter(rung["ended"]) for rung in rungs), Counter())
        rows[made_at(record)] = {
            "schedules": sum(rung["schedules"] for rung in rungs),
            "calls that failed": sum(sum(rung["fired"].values()) for rung in rungs),
            "at so many points": len({fault.split(", ")[0] for rung in rungs for fault in rung["fired"]}),
            "requests complete": ended["length"],
            "cancelled": ended["cancelled"],
            "with a NaN": ended["error"],
            "engine gave up": sum(rung["gave_up"] for rung in rungs),
            "schedules failed": num_fell(record),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("run on")


def floods_table() -> pd.DataFrame:
    """A row per flood of requests."""
    rows = {}
    for record in map(load, FLOOD_RECORDS):
        (flood,) = record.samples
        ended = Counter(flood["ended"])
        rows[f"{flood['policy']}, `{record.model}`, {made_at(record)}"] = {
            "requests": sum(ended.values()),
            "ended": ended["length"],
            "cancelled or left": ended["cancelled"] + ended["left"],
            "refused": ended["refused"],
            "tokens/s": round(flood["generated_tokens"] / flood["seconds"]),
            "preemptions": flood["preemptions"],
            "blocks used at most": f"{flood['peak_blocks']:,} of {flood['num_blocks']:,}",
            "longest wait": f"{flood['longest_wait']:,} steps",
            "passed over": flood["most_passed_over"],
            "as alone": f"{flood['equal']} of {flood['checked']}",
            "memory": f"×{growth(flood['memory']):.3f}",
            "tensors": f"×{growth(flood['tensors']):.3f}" if flood["tensors"] else "–",
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("run on")


def http_flood_table() -> pd.DataFrame:
    """A row per number of the flood over HTTP."""
    record = load(HTTP_FLOOD_RECORD)
    (flood,) = record.samples
    words = {"leaves before": "leaves before any text", "leaves amid": "leaves in the middle of the text"}
    ended = {f"a client {words.get(kind, kind)}": num for kind, num in Counter(flood["ended"]).items()}
    counts = {
        "streams open at once": flood["most_open"],
        **ended,
        "a client is asked to come back": flood["retries"],
        "blocks lost": flood["blocks_lost"],
        "memory": f"×{growth(flood['memory']):.3f}",
    }
    return pd.DataFrame({made_at(record): counts}).rename_axis("run on")


def growth(sampled: Sequence[int]) -> float:
    """The last of the numbers, one for each hundred requests, beside that after the first thousand, after
    which memory is flat; 1 where there are no more."""
    settled = sampled[9:]
    return settled[-1] / settled[0] if any(settled) else 1.0


def num_fell(record: Record) -> int:
    """How many schedules did not go as promised."""
    return sum(len(sample["fell"]) for sample in record.samples)


def made_at(record: Record) -> str:
    """Where and when a record was made."""
    host = record.host
    where = f"{host.cpu_cores} cores of an {host.cpu}" if host.driver is None else f"one {host.device}"
    return f"{where} ({record.date[:10]}, `{record.commit[:8]}`)"
