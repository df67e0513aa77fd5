"""Steps in flight: the requests for which each makes a token, and the tokens that are handed out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from labkit.show.style import BLUE, INK, ORANGE, PALE, RED, figure, styled

if TYPE_CHECKING:  # what is drawn; the engine that it was seen in is not needed
    from labkit.watch.flights import Flights

BOX = 0.8


@styled
def draw_flights(watched: Flights, ends: int | None = None, title: str = "") -> Figure:
    """Draw the steps that an engine launched, a column per step and a row per request: a box where the step
    made a token for the request, hollow if that token was thrown away.

    ends: the token id that ends a text; its box says so.
    """
    request_ids = sorted({i for flight in watched.flights for i in flight.request_ids})
    fig, axes = figure(1.5 + 0.4 * len(request_ids))
    for flight in watched.flights:
        tokens = dict(zip(flight.request_ids, flight.token_ids, strict=False))
        for request_id in flight.request_ids:
            row, is_handed_out = request_ids.index(request_id), request_id in flight.handed_to
            is_end = ends is not None and tokens.get(request_id) == ends
            _draw_box(axes, row, flight.number, is_handed_out, is_end)
    axes.set_xlim(0.4, len(watched.flights) + 0.6)
    axes.set_xticks(range(1, len(watched.flights) + 1))
    axes.set_yticks(range(len(request_ids)), [f"request {i}" for i in request_ids])
    axes.set_ylim(len(request_ids) - 0.4, -0.6)
    axes.set_xlabel("decode step, in the order of their launches")
    axes.set_title(title or "Whose tokens each step makes, and who gets them")
    fig.legend(
        handles=[
            Patch(facecolor=BLUE, alpha=0.75, label="handed out"),
            Patch(facecolor=ORANGE, label="handed out, and it ends the text"),
            Patch(facecolor=PALE, edgecolor=RED, lw=1.5, label="made, and nobody gets it"),
        ],
        loc="outside lower center",
        ncols=3,
    )
    return fig


def _draw_box(axes: Axes, row: int, number: int, is_handed_out: bool, is_end: bool) -> None:
    place = (number - BOX / 2, row - BOX / 2)
    if not is_handed_out:
        axes.add_patch(Rectangle(place, BOX, BOX, facecolor=PALE, edgecolor=RED, lw=1.5))
        axes.text(number, row, "×", ha="center", va="center", color=RED, weight="bold")
        return
    face = {"facecolor": ORANGE} if is_end else {"facecolor": BLUE, "alpha": 0.75}
    axes.add_patch(Rectangle(place, BOX, BOX, lw=0, **face))
    if is_end:
        axes.text(number, row, "end", ha="center", va="center", color=INK, fontsize=8)
