"""Before and after, the rungs of the ladder, and whether a difference can be believed."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from labkit.ladder import LADDER
from labkit.results.comparison import CONFIDENCE, Comparison
from labkit.show.colours import BLUE, GREY, GREY_INK, INK, PALE, RED, colour
from labkit.show.style import figure, is_wide, key_below, name_rows, styled

STEP = 0.7  # height of a rung's box
VERDICT_COLOURS = {"faster": BLUE, "slower": RED}  # grey for every other


@styled
def draw_comparison(comparisons: Mapping[str, Comparison]) -> Figure:
    """Draw comparisons by label, a row per comparison: the ratio of the medians as a dot, its interval as a
    bar, and the verdict in words. Where ratios lie far apart, the axis is logarithmic."""
    fig, axes = figure(1.2 + 0.55 * len(comparisons))
    axes.axvline(1, color=INK, lw=1)
    for row, comparison in enumerate(comparisons.values()):
        colour, verdict = VERDICT_COLOURS.get(comparison.verdict, GREY), comparison.verdict
        ink = ink_of(colour)
        if comparison.warning:  # it has no verdict
            colour, verdict, ink = GREY, f"{comparison.path!r} never ran", RED
        axes.plot(comparison.interval, [row, row], color=colour, lw=8, alpha=0.45, solid_capstyle="butt")
        axes.plot(comparison.speedup, row, "o", color=colour, markersize=6)
        write_beside(axes, row, verdict, f"×{comparison.speedup:.3f} {comparison.interval}", ink)
    name_rows(axes, [textwrap.fill(label, 26) for label in comparisons])
    axes.margins(x=0.1)
    if is_wide([end for comparison in comparisons.values() for end in comparison.interval]):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.minorticks_off()
    else:
        axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter("×{x:g}")
    axes.grid(axis="x")
    axes.set_xlabel(f"speed-up: time before / time after, medians (bar: {100 * CONFIDENCE:.0f} % interval)")
    axes.set_title("Right of 1: faster. Left of 1: slower. A bar across 1 cannot tell")
    return fig


def write_beside(axes: Axes, row: int, first: str, second: str, ink: str) -> None:
    """Two lines of text to the right of a row."""
    place = {"transform": axes.get_yaxis_transform(), "color": ink}
    axes.text(1.02, row, first, va="bottom", weight="bold", **place)
    axes.text(1.02, row + 0.04, second, va="top", fontsize=9, **place)


def ink_of(colour: str) -> str:
    """The colour of words about what has this colour: a dot's or a bar's grey would be too pale to read."""
    return GREY_INK if colour == GREY else colour


@styled
def draw_gains(gains: Mapping[str, Mapping[str, Mapping[int, Comparison]]]) -> Figure:
    """Draw how many times faster models are on several GPUs: a panel per model, a line per number and
    kind of GPUs, a point with its interval per number of requests. Hollow grey points cannot be told from 1.

    gains: by model, GPUs ("2 × H100") and number of requests; at least one.
    """
    fig, axes = figure(3.6, ncols=len(gains), squeeze=False, sharey=True)
    sizes = sorted({gpus for by_gpus in gains.values() for gpus in by_gpus})
    every = sorted({n for by_gpus in gains.values() for by_n in by_gpus.values() for n in by_n})
    for panel, (model, by_gpus) in zip(axes[0], gains.items(), strict=True):
        panel.axhline(1, color=INK, lw=1)
        for gpus, by_requests in by_gpus.items():
            ink = colour(sizes.index(gpus))
            shift = 0.12 * (sizes.index(gpus) - (len(sizes) - 1) / 2)  # so that intervals stand side by side
            places = [every.index(n) + shift for n in by_requests]
            panel.plot(places, [each.speedup for each in by_requests.values()], color=ink, lw=1, alpha=0.5)
            for place, each in zip(places, by_requests.values(), strict=True):
                is_told = each.verdict in ("faster", "slower")
                look = {"color": ink} if is_told else {"color": GREY, "markerfacecolor": "white"}
                panel.plot([place, place], each.interval, lw=5, alpha=0.35, color=look["color"])
                panel.plot(place, each.speedup, "o", markersize=6, **look)
        panel.set_title(model)
        panel.set_xticks(range(len(every)), [f"{n}" for n in every])
        panel.set_xlim(-0.5, len(every) - 0.5)
        panel.set_xlabel("requests at once")
        panel.grid(axis="y")
    axes[0, 0].yaxis.set_major_formatter("×{x:g}")
    axes[0, 0].set_ylabel("times as fast as one GPU")
    handles = [Line2D([], [], marker="o", color=colour(i), label=gpus) for i, gpus in enumerate(sizes)]
    grey = Line2D([], [], marker="o", color=GREY_INK, markerfacecolor="white", ls="", label="cannot tell")
    bar = Line2D([], [], lw=5, alpha=0.35, color=INK, label=f"{100 * CONFIDENCE:.0f} % interval")
    key_below(fig, {}, len(handles) + 2, *handles, grey, bar)
    fig.suptitle("Above 1 it pays to cut the model among GPUs, below 1 it loses", size=11, weight="bold")
    fig.set_label(f"What it gains to cut {', '.join(gains)} among GPUs, by requests")
    return fig


@styled
def draw_ladder(
    rates: Mapping[str, Sequence[float]], limit: float | None = None, of: str = "decode tokens per second"
) -> Figure:
    """Draw the tokens per second of the rungs, in order: each run a dot, a box from the median of the
    rung below to the rung's own, and the factor between them with drift taken out, as `Comparison` has it.

    The box is blue or red where a comparison with the rung below says faster or slower, and grey otherwise.
    rates: tokens per second of the runs of each rung, by its number ("03"), made in turn; where the runs of
    two rungs make no rounds, the factor is the ratio of their medians, and grey. limit: the most tokens per
    second that the hardware allows. of: what the rates are.
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
        labels.append("the hardware's limit")
    name_rows(axes, labels)
    highest = max(everything)  # with room for a factor beside it
    axes.set_xlim(start, highest * (highest / start) ** 0.15 if start else 1.18 * highest)
    if not start:
        axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(
        f"{of}, each dot a run{' (logarithmic axis)' if start else ''}\n"
        "blue: faster than the rung before; red: slower; grey: cannot tell"
    )
    axes.set_title(ladder_title(medians, limit))
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
        place = (max(rate, below, *runs), row), (6, 0), "data", "offset points"
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # over the limit's line
        look = {"color": ink_of(colour), "weight": "bold", "bbox": ground}
        axes.annotate(f"×{factor:.2f}", *place, va="center", **look)
    axes.plot(runs, [row] * len(runs), "o", color=INK, markersize=3, alpha=0.7)


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
        place = (1, row), (points, 0), axes.get_yaxis_transform(), "offset points"
        axes.annotate(text, *place, ha="right", va="center")


def rung_label(number: str) -> str:
    """The label of a rung beside a figure: of "00", its number and title on lines that fit. A name that is no
    rung's is returned as it is."""
    title = f"{number} {LADDER[number].title}" if number in LADDER else number
    return textwrap.fill(title, 26)


def ladder_title(medians: Mapping[str, float], limit: float | None) -> str:
    """A title in words: the factor from the first median to the last, and the last one's share of the
    limit."""
    (first, rate), *_, (last, reached) = medians.items()
    gained = f"Rung {first} to {last}: ×{reached / rate:.1f}"
    return f"{gained}, up to {100 * reached / limit:.1f} % of the limit" if limit else gained
