"""The rung below, the reader's engine and the package's: how long the host takes for a step."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from labkit.results import Comparison
from labkit.show.comparison import VERDICT_COLOURS
from labkit.show.style import GREY, GREY_INK, INK, figure, styled


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
        us = 1e6 * np.array(runs)
        verdict = comparisons[name].verdict if name in comparisons else ""
        colour = VERDICT_COLOURS.get(verdict, GREY)
        axes.barh(row, np.median(us), height=0.62, color=colour, alpha=0.5)
        axes.plot(us, row + np.linspace(-0.2, 0.2, len(us)), "o", color=INK, markersize=3.5, alpha=0.7)
        if name in comparisons:
            ink = GREY_INK if colour == GREY else colour
            place = {"transform": axes.get_yaxis_transform(), "color": ink}
            axes.text(1.02, row, verdict, va="bottom", weight="bold", **place)
            ratio = f"×{comparisons[name].speedup:.2f} {comparisons[name].interval}"
            axes.text(1.02, row + 0.04, ratio, va="top", fontsize=9, **place)
    axes.set_yticks(range(len(seconds)), list(seconds))
    axes.set_ylim(len(seconds) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="x")
    axes.set_xlabel(f"{what} per decode step of {batch_size} requests, the model taken out (microseconds)")
    axes.set_title("Before and after, on this machine")
    return fig
