"""Lesson 12: a draw in which several programs split a row, as it was measured, from a file under data/."""

from types import SimpleNamespace

import pandas as pd

from labkit.learn.variants import Variants

VARIANTS = Variants("sampler_variants_h200")
measured, source = VARIANTS.measured, VARIANTS.source
WHOLE, SPLIT = "one program per row", "several programs per row"  # rung 12's form, and the one that was tried
KINDS = {"temperature": "temperature_us", "top-k": "top_k_us", "top-p": "top_p_us", "both": "both_us"}


def sample(rows: int, drawing: int, form: str, dtype: str = "float16") -> SimpleNamespace:
    """The sample of a form with so many rows, of which so many draw."""
    wanted = (rows, drawing, form, dtype)
    return next(s for s in measured().draws.samples if (s.rows, s.drawing, s.form, s.dtype) == wanted)


def table(rows: int = 64) -> pd.DataFrame:
    """A row per kind of draw, where one row of a batch draws and where all do: microseconds of both forms."""
    return pd.DataFrame.from_dict(
        {
            f"{drawing} of {rows}, {kind}": {
                form: f"{getattr(sample(rows, drawing, form), key):.0f}" for form in (WHOLE, SPLIT)
            }
            for drawing in (1, rows)
            for kind, key in KINDS.items()
        },
        orient="index",
    ).rename_axis("us, greedy kernels included")


def settings_line() -> str:
    """What the settings that were tried came to: from the least to the most microseconds."""
    samples = measured().settings.samples
    one, all_rows = [s.one_us for s in samples], [s.all_us for s in samples]
    return (
        f"{len(samples)} settings of several programs, top-p: one of 64 draws, {min(one):.0f} to "
        f"{max(one):.0f} us; all draw, {min(all_rows):.0f} to {max(all_rows):.0f} us"
    )
