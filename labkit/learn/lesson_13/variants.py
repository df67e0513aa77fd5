"""Lesson 13: attention in shares, chunks and arrivals as they were measured, from a file under data/."""

from collections.abc import Iterable
from statistics import median
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


# --- chunks ----------------------------------------------------------------------------------------


def chunks_table() -> pd.DataFrame:
    """A row per size of a chunk: microseconds by PyTorch's products and by the decode step's kernels."""
    columns = {}
    for s in measured().chunks.samples:
        by_pytorch, fused = median(s.pytorch_us), median(s.fused_us)
        columns[s.rows] = {
            "PyTorch's products": f"{by_pytorch:.0f}",
            "the decode step's kernels": f"{fused:.0f}",
            "faster by": f"×{by_pytorch / fused:.2f}",
        }
    return pd.DataFrame(columns).T.rename_axis("rows (us per chunk)")


def launches_table() -> pd.DataFrame:
    """A row per way to launch chunks: throughput and gaps, the median run and all runs' range."""
    return pd.DataFrame(
        {
            s.form: {
                "ragged, k tokens/s": in_words((rate / 1e3 for rate in s.ragged_tokens_per_second), 1),
                "ITL p50 (ms)": in_words((run.p50 for run in s.itl_ms), 2),
                "ITL p99 (ms)": in_words((run.p99 for run in s.itl_ms), 2),
            }
            for s in measured().launches.samples
        }
    ).T.rename_axis("chunks")


def arrivals_table() -> pd.DataFrame:
    """A row per rung and who takes the time: how many requests a second, and gaps at 70 % of them."""
    return pd.DataFrame(
        {
            f"rung {s.rung}, as {s.seen_by} {'have' if 'clients' in s.seen_by else 'has'} them": {
                "at most (requests/s)": f"{s.sustained_per_second:.0f}",
                "ITL p50 (ms)": in_words((run.p50 for run in s.itl_ms), 2),
                "ITL p99 (ms)": in_words((run.p99 for run in s.itl_ms), 1),
                "p99 over p50": in_words((run.p99 / run.p50 for run in s.itl_ms), 1),
                "TTFT p50 (ms)": in_words((run.p50 for run in s.ttft_ms), 1),
            }
            for s in measured().arrivals.samples
        }
    ).T.rename_axis("tokens")


def in_words(numbers: Iterable[float], digits: int) -> str:
    """The median, and the range if that is not a single number: "1.42 (1.13 to 1.66)"."""
    runs = sorted(numbers)
    middle, lowest, highest = (f"{number:.{digits}f}" for number in (median(runs), runs[0], runs[-1]))
    return middle if lowest == highest else f"{middle} ({lowest} to {highest})"
