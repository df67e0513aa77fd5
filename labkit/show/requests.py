"""A request of a server on one clock, from the client's socket to the model."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.show.colours import PALE, colour
from labkit.show.marks import bare, box, key_below, name_rows
from labkit.show.style import figure, styled

THICK = 0.62  # height of a row's boxes
VISIBLE = 0.003  # of the axis: the width of a box that would be thinner


class Stretch(NamedTuple):
    """What was done in a lane from `start` to `end`, in milliseconds since the client began."""

    lane: str
    work: str
    start: float
    end: float


@styled
def draw_request(stretches: Sequence[Stretch]) -> Figure:
    """Draw the stretches of one request: a row per lane, in the order in which they are named, a colour per
    kind of work. Raises ValueError if there is none."""
    lanes = list(dict.fromkeys(stretch.lane for stretch in stretches))
    works = list(dict.fromkeys(stretch.work for stretch in stretches))
    end = max(stretch.end for stretch in stretches)
    fig, axes = figure(1.3 + 0.5 * len(lanes))
    for row in range(len(lanes)):
        box(axes, (0, row - THICK / 2), end, THICK, fc=PALE, lw=0)
    for lane, work, start, stop in stretches:
        corner = start, lanes.index(lane) - THICK / 2
        box(axes, corner, max(stop - start, VISIBLE * end), THICK, fc=colour(works.index(work)), lw=0)
    axes.set_xlim(0, end)
    name_rows(axes, lanes)
    bare(axes)
    axes.set_xlabel("milliseconds since the client began to send")
    axes.set_title(f"One request, from the socket to the model: {end:,.0f} ms")
    key_below(fig, [Patch(facecolor=colour(i), label=work) for i, work in enumerate(works)], 4)
    return fig
