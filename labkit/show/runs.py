"""Single runs before and after, and whether their ranges overlap."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.show.style import BLUE, GREY, INK, ORANGE, figure, styled

Sides = tuple[Sequence[float], Sequence[float]]


@styled
def draw_runs(pairs: Mapping[str, Sides], unit: str = "tokens per second") -> Figure:
    """Draw single runs before and after, a panel per pair, by its title: each run a dot, each side's mean a
    line, and the range that both sides cover.

    pairs: for each title, the figures of the runs before and of the runs after, in `unit`.
    """
    fig, panels = figure(0.4 + 1.45 * len(pairs), rows=len(pairs), squeeze=False)
    for axes, (title, sides) in zip(panels[:, 0], pairs.items(), strict=True):
        shared = overlap(*sides)
        if shared:
            axes.axvspan(*shared, color=ORANGE, alpha=0.3, lw=0)
        for row, (runs, shade) in enumerate(zip(sides, (GREY, BLUE), strict=True)):
            axes.plot(runs, [row] * len(runs), "o", color=shade, markersize=8)
            axes.plot([np.mean(runs)] * 2, [row - 0.3, row + 0.3], color=INK, lw=1.5)
            _write_beside(axes, row, f"mean {np.mean(runs):,.0f}")
        axes.set_yticks([0, 1], ["before", "after"])
        axes.set_ylim(1.6, -0.6)
        axes.margins(x=0.08)
        axes.locator_params(axis="x", nbins=7)
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.set_title(textwrap.fill(f"{title}: {_in_words(shared)}", 90))
    panels[-1, 0].set_xlabel(f"{unit} (dot: a run; line: their mean)")
    return fig


def overlap(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """The interval that the ranges of both sides cover; None if every run of one side is above every run of
    the other."""
    low, high = max(min(before), min(after)), min(max(before), max(after))
    return (low, high) if low <= high else None


def _in_words(shared: tuple[float, float] | None) -> str:
    return f"they overlap from {shared[0]:,.0f} to {shared[1]:,.0f}" if shared else "they do not overlap"


def _write_beside(axes: Axes, row: int, text: str) -> None:
    axes.text(1.02, row, text, va="center", transform=axes.get_yaxis_transform(), color=INK)
