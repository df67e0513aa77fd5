"""Lesson 11: ways to hide the latency of a step that were measured, from two files under data/."""

import pandas as pd

from labkit.learn.variants import Variants

VARIANTS = Variants("latency_variants_h200")
H100 = Variants("latency_variants_h100")  # measured later, with weights that are asked for once
measured, part, source = VARIANTS.measured, VARIANTS.part, VARIANTS.source
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
    "lanes tiles A": "products of other tiles, A",
    "lanes tiles B": "products of other tiles, B",
    "lanes tiles C": "products of other tiles, C",
    "lanes tiles D": "products of other tiles, D",
    "3 lanes": "three lanes",
}
MIXED = "256 to 512"  # tokens in the cache of each request
WHOLE, IN_HALVES, WHOLE_EARLY = "whole", "in halves", "whole, weights early"  # how a batch of rung 14 went


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


def asks_line(numbers: int, warps: int) -> str:
    """How often a request for so many numbers, in a program of so many warps, was made."""
    (asks,) = (s for s in H100.part("asks").samples if (s.numbers, s.warps) == (numbers, warps))
    return (
        f"{numbers} numbers, {32 * warps} threads: {asks.every_thread} requests for each by every thread "
        f"that holds it, {asks.once} by the first of them"
    )


def once_table() -> pd.DataFrame:
    """A row per load: what weights change that are asked for early, by every thread and once, each beside the
    whole batches that it ran in turn with."""
    ms = {(s.rows, s.variant): s.ms for s in H100.part("once").samples}
    rows = {
        f"{B} x 512": {
            "nothing early (ms)": f"{ms[B, 'whole']:.0f}",
            "by every thread": change(ms[B, "by every thread"], ms[B, "whole"]),
            "once": change(ms[B, "once"], ms[B, "whole, later"]),
        }
        for B in sizes(ms)
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("requests x tokens")


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
            "times as fast": f"×{below[sample.run, sample.rows] / sample.us:.2f}",
        }
        for sample in samples
        if sample.variant != RUNG_10
    ]
    return pd.DataFrame(rows).set_index("requests")


def barriers() -> str:
    """What the grid barriers of a step took alone."""
    about = measured().grid_barriers
    return f"{about.number} grid barriers alone: {about.us} us"


def sizes(us: dict[tuple[int, str], float]) -> list[int]:
    """The numbers of requests that were measured, from the smallest."""
    return sorted({rows for rows, _ in us})
