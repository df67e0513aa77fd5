"""Lesson 11: other ways to hide the latency of a step that were measured, from a file under data/."""

import json
from functools import cache
from typing import Any

import pandas as pd

from labkit.learn.verdict import wrapped
from labkit.paths import ROOT

VARIANTS = ROOT / "data/latency_variants_h200.json"
RUNG_10 = "rung 10's kernels"


@cache
def measured() -> dict[str, Any]:
    """The file: device, date, how it was measured, and the samples."""
    return json.loads(VARIANTS.read_text(encoding="utf-8"))


def table() -> pd.DataFrame:
    """A row per variant of the kernel of all layers and number of requests: its microseconds, and how much
    faster it is than rung 10's kernels in the same run."""
    samples = measured()["samples"]
    below = {(s["run"], s["rows"]): s["us"] for s in samples if s["variant"] == RUNG_10}
    rows = [
        {
            "requests": sample["rows"],
            "12 layers": sample["variant"],
            "us": f"{sample['us']:.0f}",
            "over rung 10": f"×{below[sample['run'], sample['rows']] / sample['us']:.2f}",
        }
        for sample in samples
    ]
    return pd.DataFrame(rows).set_index("requests")


def source() -> str:
    """Where and how the variants were measured."""
    about = measured()
    return wrapped(f"{about['device']}, {about['date']}: {about['measured']}")


def asked_early() -> str:
    """What asking for weights before the wait gained alone, by the number of requests."""
    gains = (f"{e['rows']} requests {e['gain_percent']:+.0f} %" for e in measured()["asked_early"])
    return f"asked early, decode rate: {', '.join(gains)}"


def barriers() -> str:
    """What the grid barriers of a step took alone."""
    about = measured()["grid_barriers"]
    return f"{about['number']} grid barriers alone: {about['us']} us"
