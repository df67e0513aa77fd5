"""Where the requests of a batch write, step after step, and which way their batch is written."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from labkit.show.style import BLUE, GREEN, GREY, INK, ORANGE, colour, figure, styled

if TYPE_CHECKING:  # what is drawn; the engine that it was seen in is not needed
    from labkit.watch.positions import Positions

# By the name of the write's counter.
WRITE_COLOURS = {"indexed": GREY, "generic": ORANGE, "full_batch": GREEN, "identity_pos": BLUE}
STRIP = 0.16  # of a panel's height: the strip that names the write


@styled
def draw_positions(runs: Mapping[str, Positions]) -> Figure:
    """Draw where the requests of a batch write, a panel per run, by its title: each request's slot against
    the step, and in a strip below it which of the writes was taken.

    Where lines lie on each other, the earlier request's is the wider one.
    """
    fig, panels = figure(0.5 + 1.75 * len(runs), rows=len(runs), squeeze=False, sharex=True)
    for axes, (title, run) in zip(panels[:, 0], runs.items(), strict=True):
        _draw_slots(axes, run)
        _draw_strip(axes, run)
        axes.set_title(f"{title}: equal slots in {run.num_equal} of {len(run.steps)} steps")
        axes.set_ylabel("slot")
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 4, 8, 10]))
        axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick < run.block_size])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y")
    panels[-1, 0].set_xlabel("decode step (strip: how the batch is written)")
    return fig


def _draw_slots(axes: Axes, run: Positions) -> None:
    request_ids = list(dict.fromkeys(i for step in run.steps for i in step.slots))
    numbers = np.arange(1, len(run.steps) + 1)
    for row, request_id in enumerate(request_ids):
        slots = np.array([step.slots.get(request_id, np.nan) for step in run.steps], dtype=float)
        width = 2.0 + 3.0 * (len(request_ids) - 1 - row)
        for piece in np.split(np.arange(len(slots)), 1 + np.flatnonzero(np.diff(slots) < 0)):
            axes.plot(  # a line ends with its block
                numbers[piece],
                slots[piece],
                color=colour(request_id),
                lw=width,
                marker="o",
                markersize=width + 2,
                alpha=0.45 if row < len(request_ids) - 1 else 1,
                solid_capstyle="round",
                label=f"request {request_id}" if piece[0] == 0 else None,
            )
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.6), borderaxespad=0.3)


def _draw_strip(axes: Axes, run: Positions) -> None:
    """Draw a box under the slots for each group of consecutive steps with the same write."""
    span = run.block_size - 1
    height = STRIP * span
    bottom = -0.12 * span - height
    for path, group in groupby(enumerate(run.steps, start=1), key=lambda numbered: numbered[1].path):
        numbers = [number for number, _ in group]
        left, width = numbers[0] - 0.5, len(numbers)
        axes.broken_barh([(left, width)], (bottom, height), color=WRITE_COLOURS[path], alpha=0.35, lw=0)
        if width >= 3:  # room for its name
            axes.text(
                left + width / 2, bottom + height / 2, path, ha="center", va="center", fontsize=8, color=INK
            )
    axes.set_ylim(bottom - 0.04 * span, 1.1 * span)
    axes.set_xlim(0.3, len(run.steps) + 0.7)
