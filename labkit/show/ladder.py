"""The ladder: what each rung adds, and what the hardware leaves to be had."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.ladder import LADDER
from labkit.results import Comparison
from labkit.show.colours import GREY, INK, PALE
from labkit.show.comparison import VERDICT_COLOURS, ink_of
from labkit.show.marks import name_rows
from labkit.show.style import figure, is_wide, styled

STEP = 0.7  # height of a rung's box
LIMIT_NAME = "the hardware's limit"


@styled
def draw_ladder(
    rates: Mapping[str, Sequence[float]],
    limit: float | None = None,
    title: str = "",
    of: str = "decode tokens per second",
) -> Figure:
    """Draw the tokens per second of the rungs, in order: each run a dot, a box from the median of the
    rung below to the rung's own, and the factor between them with drift taken out, as `Comparison` has it.

    The box is blue or red where a comparison with the rung below says faster or slower, and grey otherwise.
    rates: tokens per second of the runs of each rung, by its number ("03"), made in turn; where the runs of
    two rungs make no rounds, the factor is the ratio of their medians, and grey. limit: the most tokens per
    second that the hardware allows. title: by default, the factor gained over all rungs and how near the last
    comes to the limit. of: what the rates are.
    """
    medians = {number: float(np.median(runs)) for number, runs in rates.items()}
    everything = [rate for runs in rates.values() for rate in runs] + [limit] * bool(limit)
    start = min(everything) / 1.5 if is_wide(everything) else 0.0
    fig, axes = figure(1.1 + 0.42 * (len(rates) + bool(limit)))
    axes.set_xscale("log" if start else "linear")
    below: Sequence[float] = ()
    for row, (number, runs) in enumerate(rates.items()):
        _draw_step(axes, row, start, below, runs)
        _write_beside(axes, row, medians[number], limit)
        below = runs
    labels = [rung_label(number) for number in rates]
    if limit:
        axes.axvline(limit, color=INK, lw=1.5, ls="--")
        _write_beside(axes, len(rates), limit, limit)
        labels.append(LIMIT_NAME)
    name_rows(axes, labels)
    highest = max(everything)  # with room for a factor beside it
    axes.set_xlim(start, highest * (highest / start) ** 0.15 if start else 1.18 * highest)
    if not start:
        axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(
        f"{of}, each dot a run{' (logarithmic axis)' if start else ''}\n"
        "blue: faster than the rung below; red: slower; grey: cannot tell"
    )
    axes.set_title(title or ladder_title(medians, limit))
    return fig


def _draw_step(
    axes: Axes, row: int, start: float, below_runs: Sequence[float], runs: Sequence[float]
) -> None:
    """Draw a rung: pale up to where both it and the rung below reach, then a box of what it gains or
    loses."""
    rate, below = float(np.median(runs)), float(np.median(below_runs)) if row else start
    factor, colour = _compare(below_runs, runs)
    both = min(below, rate)
    axes.barh(row, both - start, left=start, color=PALE, height=STEP)
    axes.barh(row, abs(rate - below), left=both, color=colour, height=STEP, alpha=0.6)
    axes.plot([rate, rate], [row - STEP / 2, row + STEP / 2], color=INK, lw=1)
    if row:
        axes.plot([below, below], [row - 1 + STEP / 2, row + STEP / 2], color=INK, lw=1)
    axes.plot(runs, [row] * len(runs), "o", color=INK, markersize=3, alpha=0.7)
    if row:
        axes.annotate(
            f"×{factor:.2f}",
            (max(rate, below, *runs), row),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=ink_of(colour),
            weight="bold",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},  # over the limit's line
        )


def _compare(below: Sequence[float], runs: Sequence[float]) -> tuple[float, str]:
    """How many times as fast a rung is as the one below, and the colour of the verdict; both as rates."""
    if not below:
        return np.nan, GREY
    if len(below) != len(runs) or len(runs) % 2:
        return float(np.median(runs) / np.median(below)), GREY
    seconds = [tuple(1 / rate for rate in side) for side in (below, runs)]  # for one token
    step = Comparison("below", "rung", *seconds, {}, {})
    return step.speedup, VERDICT_COLOURS.get(step.verdict, GREY)


def _write_beside(axes: Axes, row: int, rate: float, limit: float | None) -> None:
    """The rate, and its share of the limit, in columns to the right."""
    columns = [(f"{rate:,.0f} tokens/s", 105)]
    if limit:
        columns.append((f"{100 * rate / limit:.1f} %", 155))
    for text, points in columns:
        axes.annotate(
            text,
            (1, row),
            xycoords=axes.get_yaxis_transform(),
            xytext=(points, 0),
            textcoords="offset points",
            ha="right",
            va="center",
        )


def rung_label(number: str) -> str:
    """The label of a rung beside a figure: of "00", its number and title on lines that fit. A name that is no
    rung's is returned as it is."""
    title = f"{number} {LADDER[number].title}" if number in LADDER else number
    return textwrap.fill(title, 26)


def ladder_title(medians: Mapping[str, float], limit: float | None) -> str:
    """A title in words: the factor from the first median to the last, and the last one's share of the
    limit."""
    numbers, rates = list(medians), list(medians.values())
    reached = f"{100 * rates[-1] / limit:.1f} % of the limit" if limit else ""
    if len(numbers) == 1:
        return f"Rung {numbers[0]} reaches {reached}" if limit else f"Decode throughput of rung {numbers[0]}"
    gained = f"Rung {numbers[0]} to {numbers[-1]}: ×{rates[-1] / rates[0]:.1f}"
    return f"{gained}, which is {reached}" if limit else gained
