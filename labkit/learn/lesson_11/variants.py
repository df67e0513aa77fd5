"""Lesson 11: ways to hide the latency of a step that were measured, from files under data/."""

from collections.abc import Mapping, Sequence
from statistics import median
from types import SimpleNamespace

import pandas as pd

from labkit.learn.variants import Variants

STEPS = Variants("latency_variants_h200")
HELD = Variants("held_weights_h100")
WHOLE = Variants("latency_variants_h100")
RINGS = Variants("ring_variants_h100")


def steps_table(loads: Sequence[tuple[int, str]], variants: Mapping[str, str]) -> pd.DataFrame:
    """Microseconds of a step: a row per load, its requests and their tokens, and a column per variant, with
    the change from the first one. variants: as the file names them, by the column's name."""
    us = {(s.rows, s.tokens, s.variant): s.us for s in STEPS.part("steps").samples}
    rows = {}
    for num_rows, tokens in loads:
        row = rows[f"{num_rows} × {tokens}"] = dict.fromkeys(variants, "")
        before = us[num_rows, tokens, next(iter(variants.values()))]
        for name, variant in variants.items():
            if time := us.get((num_rows, tokens, variant)):
                change = f" ({100 * (time / before - 1):+.1f} %)" if time != before else ""
                row[name] = f"{time:.0f}{change}"
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("requests × tokens")


def products_of(model: str, num_rows: int, variants: Variants = HELD) -> list[SimpleNamespace]:
    """A layer's four products, for a batch of so many requests: `before_us` and `us` of each."""
    samples = variants.part("products").samples
    return [s for s in samples if (s.model, s.rows) == (f"random:{model}", num_rows)]


def times_as_fast(products: Sequence[SimpleNamespace]) -> float:
    """How many times as fast products are since those hold their weights that gain by it."""
    return sum(s.before_us for s in products) / sum(s.us for s in products)


def products_table(
    models: Sequence[str],
    sizes: Sequence[int] = (1, 16, 64),
    variants: Variants = HELD,
    column: str = "products that hold",
    counted: str = "is_held",
) -> pd.DataFrame:
    """A row per model and batch: microseconds of a layer's four products, and how many of them are `counted`.
    Batches that were not measured are left out."""
    rows = {
        (model, num_rows): {
            "before (µs)": f"{sum(s.before_us for s in products):.1f}",
            "now (µs)": f"{sum(s.us for s in products):.1f}",
            "times as fast": f"{times_as_fast(products):.2f}",
            column: f"{sum(getattr(s, counted) for s in products)} of {len(products)}",
        }
        for model in models
        for num_rows in sizes
        if (products := products_of(model, num_rows, variants))
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["model", "requests"])


def whole_table() -> pd.DataFrame:
    """Tokens per second in two halves and whole, by load: the median of the runs, the fewest and most."""

    def spread(rates: Sequence[int]) -> str:
        return f"{median(rates):,.0f} ({min(rates):,} to {max(rates):,})"

    rates = {(s.rows, s.tokens, s.variant): s.tokens_per_s for s in WHOLE.part("whole").samples}
    rows = {}
    for num_rows, tokens in dict.fromkeys((num_rows, tokens) for num_rows, tokens, _ in rates):
        halves, whole = (rates[num_rows, tokens, variant] for variant in ("halves", "whole"))
        rows[f"{num_rows} × {tokens}"] = {
            "two halves (tokens/s)": spread(halves),
            "whole (tokens/s)": spread(whole),
            "whole, times as fast": f"{median(whole) / median(halves):.2f}",
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("requests × new tokens")
