"""What the parts of a step cost the host, as bars."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.show.style import BLUE, GREY, INK, ORANGE, SKY, figure, styled

COLOURS = {  # by the part's name, on rungs up to 05, and from rung 07 on
    "block tables": GREY,
    "append": ORANGE,
    "the rest": SKY,
    "reserve": ORANGE,
    "tell the device": GREY,
    "launch and the rest": BLUE,
}
Parts = Mapping[str, float]  # microseconds, in the order of the bar


@styled
def draw_host_shares(pairs: Mapping[str, tuple[Parts, Parts]], names: tuple[str, str]) -> Figure:
    """Draw the host time of decode steps in parts, two bars per pair, by label: a step before and a step
    after, both in per cent of the step before.

    pairs: for each label, the parts before and after, in microseconds. names: of the two rungs.
    """
    fig, axes = figure(1.3 + 0.62 * len(pairs))
    for row, pair in enumerate(pairs.values()):
        whole = sum(pair[0].values())
        for place, parts in enumerate(pair):
            _draw_shares(axes, row + 0.36 * place, parts, whole, names[place])
    axes.set_yticks(np.arange(len(pairs)) + 0.18, list(pairs))
    axes.set_ylim(len(pairs) - 0.35, -0.35)
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"host time of a step, per cent of rung {names[0]}'s")
    axes.set_title("Only the append shrinks: the more requests, the more of it goes", pad=24)
    _draw_legend(axes, next(iter(pairs.values()))[0], alpha=0.75)
    return fig


def _draw_shares(axes: Axes, y: float, parts: Parts, whole: float, name: str) -> None:
    left = 0.0
    for part, microseconds in parts.items():
        share = 100 * microseconds / whole
        axes.barh(y, share, left=left, height=0.32, color=COLOURS[part], alpha=0.75)
        if share > 8:
            axes.text(left + share / 2, y, f"{microseconds:,.0f} µs", ha="center", va="center", fontsize=8)
        left += share
    text = f"rung {name}: {sum(parts.values()):,.0f} µs"
    axes.text(1.02, y, text, va="center", fontsize=9, color=INK, transform=axes.get_yaxis_transform())


@styled
def draw_host_parts(groups: Mapping[str, Mapping[str, Parts]]) -> Figure:
    """Draw the host time of decode steps in microseconds: a group of bars per label, a bar per engine, by
    name, in parts."""
    bars = [(f"{group}, {name}", parts) for group, each in groups.items() for name, parts in each.items()]
    fig, axes = figure(1.25 + 0.34 * len(bars))
    longest = max(sum(parts.values()) for _, parts in bars)
    for row, (_, parts) in enumerate(bars):
        _draw_microseconds(axes, row, parts, longest)
    axes.set_yticks(range(len(bars)), [label for label, _ in bars])
    axes.invert_yaxis()
    axes.set_xlabel("host time of a step (microseconds)")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_title("What is left of the host's work in a step", pad=24)
    _draw_legend(axes, bars[0][1], alpha=0.7)
    return fig


def _draw_microseconds(axes: Axes, row: int, parts: Parts, longest: float) -> None:
    left = 0.0
    for part, microseconds in parts.items():
        axes.barh(row, microseconds, left=left, height=0.72, color=COLOURS[part], alpha=0.7)
        if microseconds > 0.07 * longest:
            middle = left + microseconds / 2
            axes.text(middle, row, f"{microseconds:,.0f}", ha="center", va="center", fontsize=8)
        left += microseconds
    text = f"{sum(parts.values()):,.0f} µs"
    axes.text(1.02, row, text, va="center", fontsize=9, color=INK, transform=axes.get_yaxis_transform())


def _draw_legend(axes: Axes, parts: Parts, alpha: float) -> None:
    handles = [Rectangle((0, 0), 1, 1, facecolor=COLOURS[part], alpha=alpha) for part in parts]
    axes.legend(handles, parts, ncols=3, loc="lower left", bbox_to_anchor=(0, 0.98), borderaxespad=0)
