"""Figures of bars: what is measured, in parts or beside a limit."""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.results import Comparison
from labkit.show.colours import GREY, INK, ORANGE, SKY
from labkit.show.comparison import VERDICT_COLOURS, ink_of, rung_label, write_beside
from labkit.show.lanes import Box, draw_boxes
from labkit.show.style import beside, figure, is_wide, name_rows, panels, styled

COLOURS = {"block tables": GREY, "append": ORANGE, "the rest": SKY}  # by the part's name
Parts = Mapping[str, float]  # microseconds, in the order of the bar


def draw_host_shares(pairs: Mapping[str, tuple[Parts, Parts]], names: tuple[str, str]) -> Figure:
    """Draw the host time of decode steps in parts, two bars per pair, by label: a step before and a step
    after, both in per cent of the step before.

    pairs: for each label, the parts before and after, in microseconds. names: of the two rungs.
    """
    rows, boxes = [], []
    for label, pair in pairs.items():
        whole = sum(pair[0].values()) / 100
        for rung, parts in zip(names, pair, strict=True):
            ends = [us / whole for us in accumulate(parts.values(), initial=0.0)]
            for (part, us), start, end in zip(parts.items(), ends, ends[1:], strict=False):
                look = {"facecolor": COLOURS[part], "alpha": 0.75}
                boxes.append(Box(len(rows), start, end, look, f"{us:,.0f} µs"))
            rows.append(f"{label}, rung {rung}: {ends[-1] * whole:,.0f} µs")
    looks = {part: {"facecolor": shade, "alpha": 0.75} for part, shade in COLOURS.items()}
    across = f"host time of a step, per cent of rung {names[0]}'s"
    title = "Only the append shrinks: the more requests, the more of it goes"
    return draw_boxes({title: (rows, boxes)}, across, looks, 3)


def _draw_runs(axes: Axes, row: int, runs: np.ndarray, shade: str) -> None:
    """A bar of the median, and each run a dot."""
    axes.barh(row, np.median(runs), height=0.62, color=shade, alpha=0.5)
    axes.plot(runs, row + np.linspace(-0.2, 0.2, len(runs)), "o", color=INK, markersize=3.5, alpha=0.7)


@styled
def draw_measured(
    seconds: Mapping[str, Sequence[float]],
    comparisons: Mapping[str, Comparison],
    batch_size: int,
    what: str = "host time",
) -> Figure:
    """A bar per engine, by name: the median step, each run a dot; beside it the ratio to the first one.

    comparisons: by name, with the first engine; a bar is grey where the two cannot be told apart. what: was
    measured of a step.
    """
    fig, axes = figure(1.1 + 0.62 * len(seconds))
    for row, (name, runs) in enumerate(seconds.items()):
        verdict = comparisons[name].verdict if name in comparisons else ""
        colour = VERDICT_COLOURS.get(verdict, GREY)
        _draw_runs(axes, row, 1e6 * np.array(runs), colour)
        if name in comparisons:
            ratio = f"×{comparisons[name].speedup:.2f} {comparisons[name].interval}"
            write_beside(axes, row, verdict, ratio, ink_of(colour))
    name_rows(axes, list(seconds))
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="x")
    axes.set_xlabel(f"{what} per decode step of {batch_size} requests, the model taken out (microseconds)")
    axes.set_title("Before and after, on this machine")
    return fig


@styled
def draw_staircase(
    package: Mapping[str, Sequence[float]], yours: Mapping[str, Sequence[float]], batch_size: int
) -> Figure:
    """Draw a bar per rung, the median of its runs, each a dot; below it the reader's own, where there is one.

    package, yours: by rung, the host time of a step in each run, in seconds; all runs were made in turn. Each
    of the package's rungs is compared with the one above it, and is blue where it is faster, red where it is
    slower; each of the reader's, orange, is compared with the package's. The ratios are to the right. Grey:
    they cannot be told apart.
    """
    rows: list[tuple[str, Sequence[float], Sequence[float]]] = []  # label, what it is compared with, and it
    above: Sequence[float] = ()
    for number, runs in package.items():
        rows.append((rung_label(number), above, runs))
        if number in yours:
            rows.append(("yours", runs, yours[number]))
        above = runs
    fig, axes = figure(1.5 + 0.42 * len(rows))
    for row, (label, before, after) in enumerate(rows):
        us, colour, ratio = 1e6 * np.array(after), GREY, ""
        if before:
            compared = Comparison("before", "after", tuple(before), tuple(after), {}, {})
            colour, ratio = VERDICT_COLOURS.get(compared.verdict, GREY), f"  ×{compared.speedup:.2f}"
        _draw_runs(axes, row, us, ORANGE if label == "yours" else colour)
        beside(axes, row, f"{np.median(us):,.0f} µs{ratio}", color=ink_of(colour) if ratio else INK)
    medians = [1e6 * float(np.median(runs)) for runs in package.values()]
    if is_wide(medians):
        axes.set(xscale="log", xlim=(0.5 * min(medians), None))
    name_rows(axes, [label for label, _, _ in rows])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(
        f"host time per decode step of {batch_size} requests, the fastest of each run (µs)\n"
        "×: as fast as the rung before (yours: the package's). Blue: faster; red: slower; grey: cannot tell"
    )
    first, *_, last = package
    gain = Comparison(first, last, tuple(package[first]), tuple(package[last]), {}, {}).speedup
    axes.set_title(f"{'Orange: yours. ' if yours else ''}From rung {first} to {last}: ×{gain:,.0f}")
    return fig


@styled
def draw_finale(waits: Mapping[str, Comparison], parts: Sequence[str]) -> Figure:
    """Draw a panel per wait, by its title: a bar for each engine, the median, and its runs as dots.

    waits: the seconds of each run, the reader's engine after the other. parts: the reader's in that engine,
    named below.
    """
    fig, all_axes = panels(1.1 + 1.15 * len(waits), len(waits))
    for axes, (title, compared) in zip(all_axes, waits.items(), strict=True):
        for row, seconds in enumerate((compared.before_samples, compared.after_samples)):
            _draw_runs(axes, row, 1e3 * np.array(seconds), (GREY, ORANGE)[row])
            beside(axes, row, f"{1e3 * np.median(seconds):,.0f} ms", color=INK)
        name_rows(axes, [compared.before, compared.after])
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_title(f"{title}: ×{compared.speedup:.2f}, {compared.verdict}")
    named = f"In yours, your own: {', '.join(parts)}" if parts else "Yours has no part of your own yet"
    all_axes[-1].set_xlabel("milliseconds (dot: a run)\n" + textwrap.fill(named, 90))
    return fig
