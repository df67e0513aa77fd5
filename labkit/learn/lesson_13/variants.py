"""Lesson 13: attention in shares as it was measured, from a file under data/."""

from types import SimpleNamespace

import pandas as pd

from labkit.kernels.attention_shares import MANY_HEADS
from labkit.learn.lesson_13.shares import NUM_HEADS
from labkit.learn.variants import Variants

VARIANTS = Variants("ragged_variants_h200")
measured, source = VARIANTS.measured, VARIANTS.source
EQUAL = ((1, "512"), (8, "512"), (32, "300"), (64, "100"), (64, "512"), (64, "800"), (128, "512"))


def sample(rows: int, tokens: str) -> SimpleNamespace:
    """The sample of so many rows of so many tokens."""
    return next(s for s in measured().attention.samples if (s.rows, s.tokens) == (rows, tokens))


def shares_us(of: SimpleNamespace) -> float:
    """Microseconds of equal shares as the package has them: in small pieces where a batch has many heads."""
    is_large = of.rows * NUM_HEADS >= MANY_HEADS
    return of.pieces_of_16_us if is_large else of.pieces_of_32_us


def table() -> pd.DataFrame:
    """A row per batch: the ragged ones, then equal ones: microseconds of one layer's attention."""
    ragged = [s for s in measured().attention.samples if not s.tokens.isdecimal()]
    chosen = sorted(ragged, key=lambda s: s.rows) + [sample(*load) for load in EQUAL]
    return pd.DataFrame(
        {
            f"{s.rows} x {s.tokens}": {
                "limit": f"{s.limit_us:.1f}",
                "rung 12, as many each": f"{s.split_us:.1f}",
                "shares, pieces of 32": f"{s.pieces_of_32_us:.1f}",
                "shares, pieces of 16": f"{s.pieces_of_16_us:.1f}",
                "rung 13 over rung 12": f"×{s.split_us / shares_us(s):.2f}",
            }
            for s in chosen
        }
    ).T.rename_axis("rows x tokens (us per layer)")


def plan_lines() -> list[str]:
    """What the plan takes, a line per number of rows."""
    return [f"{s.rows:>3} rows: {s.us:.1f} us" for s in measured().plan.samples]
