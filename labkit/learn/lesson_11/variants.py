"""Lesson 11: ways to hide the latency of a step that were measured, from a file under data/."""

import json
from functools import cache
from types import SimpleNamespace

import pandas as pd

from labkit.learn.verdict import wrapped
from labkit.paths import ROOT

VARIANTS = ROOT / "data/latency_variants_h200.json"
RUNG_10 = "rung 10"
LANES = "lanes"
EARLY = {"rung 10 +pw": "weights early", "rung 10 +pw+pa": "keys and values, too"}
ORDERS = {  # of the lanes, at 64 requests; by the name in the file
    RUNG_10: "rung 10",
    LANES: "two lanes, both at once",
    "lanes after product": "side behind main's first product",
    "lanes after attention": "side behind main's first attention",
    "alternating": "attentions by turns",
    "lanes side priority high": "side stream of high priority",
    "lanes no pdl": "no kernel starts early",
    "lanes 1 split": "attention not split in a half",
    "lanes tiles A": "products of smaller tiles",
    "3 lanes": "three lanes",
}
MIXED = "256 to 512"  # tokens in the cache of each request


@cache
def measured() -> SimpleNamespace:
    """The file: device, date, and by what was timed (steps, layers) how it was measured, and the samples."""
    text = VARIANTS.read_text(encoding="utf-8")
    return json.loads(text, object_hook=lambda entries: SimpleNamespace(**entries))


def source(what: str) -> str:
    """Where and how `what` was measured: "steps" or "layers"."""
    about = measured()
    return wrapped(f"{about.device}, {about.date}: {getattr(about, what).measured}")


def step_us() -> dict[tuple[int, str, str], float]:
    """Microseconds of each timed step: by its requests, their tokens and the variant."""
    return {(s.rows, s.tokens, s.variant): s.us for s in measured().steps.samples}


def change(us: float, before: float) -> str:
    """A time, and how many percent longer it is than `before`."""
    return f"{us:.0f} ({100 * (us / before - 1):+.1f} %)"


def lanes_lines() -> list[str]:
    """A line per load: a step of rung 10, and with its batch in two lanes."""
    us = step_us()
    return [
        f"{rows:>3} requests of {tokens:>10} tokens: {us[rows, tokens, RUNG_10]:.0f} -> "
        + change(us[rows, tokens, LANES], us[rows, tokens, RUNG_10])
        for rows, tokens in sorted({key[:2] for key in us if key[2] == LANES})
    ]


def early_table() -> pd.DataFrame:
    """A row per load: a step of rung 10, and what asking early changes."""
    us, rows = step_us(), {}
    for load in sorted({key[:2] for key in us if key[2] in EARLY}):
        before = us[*load, RUNG_10]
        told = {name: us.get((*load, key)) for key, name in EARLY.items()}
        rows[f"{load[0]} x {load[1]}"] = {"rung 10 (us)": f"{before:.0f}"} | {
            name: change(value, before) if value else "" for name, value in told.items()
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("requests x tokens")


def orders_table() -> pd.DataFrame:
    """A row per order of two lanes: a step of 64 requests."""
    us = step_us()
    told = {name: change(us[64, MIXED, variant], us[64, MIXED, RUNG_10]) for variant, name in ORDERS.items()}
    return pd.DataFrame({f"64 x {MIXED} (us)": told})


def layers_table() -> pd.DataFrame:
    """A row per form of the kernel of all layers and number of requests: its microseconds, and the time of
    rung 10's kernels in the same run over it."""
    samples = measured().layers.samples
    below = {(s.run, s.rows): s.us for s in samples if s.variant == RUNG_10}
    rows = [
        {
            "requests": sample.rows,
            "all layers in one kernel": sample.variant,
            "us": f"{sample.us:.0f}",
            "rung 10 (us)": f"{below[sample.run, sample.rows]:.0f}",
            "ratio": f"×{below[sample.run, sample.rows] / sample.us:.2f}",
        }
        for sample in samples
        if sample.variant != RUNG_10
    ]
    return pd.DataFrame(rows).set_index("requests")


def barriers() -> str:
    """What the grid barriers of a step took alone."""
    about = measured().grid_barriers
    return f"{about.number} grid barriers alone: {about.us} us"
