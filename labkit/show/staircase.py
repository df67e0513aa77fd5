"""Host time of a step on every rung: a staircase that any machine has."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.results import Comparison
from labkit.show.comparison import VERDICT_COLOURS
from labkit.show.ladder import rung_label
from labkit.show.style import GREY, GREY_INK, INK, ORANGE, figure, is_wide, styled

HEIGHT = 0.62  # of a bar, or of two that share a row


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
    fig, axes = figure(1.5 + 0.46 * len(package))
    medians = {number: 1e6 * float(np.median(runs)) for number, runs in package.items()}
    is_log = is_wide(medians.values())
    axes.set_xscale("log" if is_log else "linear")
    above: Sequence[float] = ()
    for row, (number, runs) in enumerate(package.items()):
        text, halves = f"{medians[number]:,.0f} µs", 1 + (number in yours)
        colour = _draw_ratio(axes, row - HEIGHT / 4 * (halves - 1), text, above, runs)
        _draw_bar(axes, row - HEIGHT / 4 * (halves - 1), HEIGHT / halves, runs, colour)
        if number in yours:
            text = f"{1e6 * float(np.median(yours[number])):,.0f} µs, yours"
            _draw_ratio(axes, row + HEIGHT / 4, text, runs, yours[number])
            _draw_bar(axes, row + HEIGHT / 4, HEIGHT / 2, yours[number], ORANGE)
        above = runs
    axes.set_yticks(range(len(package)), [rung_label(number) for number in package])
    axes.set_ylim(len(package) - 0.4, -0.6)
    if is_log:
        axes.set_xlim(left=0.5 * min(medians.values()))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(
        f"host time per decode step of {batch_size} requests, the fastest of each run (µs"
        f"{', logarithmic axis' if is_log else ''})\n"
        "×: as fast as the bar above (yours: as the package's). Blue: faster; red: slower; grey: cannot tell"
    )
    first, *_, last = package
    gain = Comparison(first, last, tuple(package[first]), tuple(package[last]), {}, {}).speedup
    axes.set_title(f"{'Orange: yours. ' if yours else ''}From rung {first} to {last}: ×{gain:,.0f}")
    return fig


def _draw_bar(axes: Axes, y: float, height: float, runs: Sequence[float], colour: str) -> None:
    us = 1e6 * np.array(runs)
    axes.barh(y, np.median(us), height=height, color=colour, alpha=0.5)
    axes.plot(us, y + height / 4 * np.linspace(-1, 1, len(us)), "o", color=INK, markersize=2.5, alpha=0.6)


def _draw_ratio(axes: Axes, y: float, text: str, before: Sequence[float], after: Sequence[float]) -> str:
    """Write a bar's text to the right, and the ratio to what it is compared with, if there is something; the
    colour of the verdict."""
    place = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "va": "center"}
    axes.annotate(text, (1, y), xytext=(6, 0), fontsize=9, **place)
    if not before:
        return GREY
    compared = Comparison("before", "after", tuple(before), tuple(after), {}, {})
    colour = VERDICT_COLOURS.get(compared.verdict, GREY)
    ink = GREY_INK if colour == GREY else colour
    axes.annotate(f"×{compared.speedup:.2f}", (1, y), xytext=(95, 0), weight="bold", color=ink, **place)
    return colour
