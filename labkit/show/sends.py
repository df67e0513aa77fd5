"""What the host sends to a device that keeps the state of each request itself (rung 06 and above)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from labkit.show.style import BLUE, GREEN, INK, ORANGE, PALE, PURPLE, figure, styled

if TYPE_CHECKING:  # what is drawn; the engine that it was seen in is not needed
    from labkit.watch.sends import Sends

SENT = {  # by what a step sends for a request: the colour and the words of the legend
    "nothing": (PALE, "nothing"),
    "boundary": (BLUE, "its row: one more block"),
    "copy_on_write": (ORANGE, "its row: its last block is a copy now"),
    "joined": (GREEN, "its row and its state: it joins"),
}
MAPPING = (PURPLE, "slot_mapping")


@styled
def draw_sends(sends: Sends) -> Figure:
    """Draw what the host sends to the device, a row per request and a column per step: what was sent for the
    request; in the cell, where anything was, its slot, and a c where its last block was copied.

    The row above says whether the slot mapping was sent, the row below how many numbers were sent in all. A
    step that only admitted requests is an empty column.
    """
    requests = sorted(sends.requests["request"].unique())
    labels = ["slot_mapping", *(f"request {request}" for request in requests), "numbers sent"]
    fig, axes = figure(1.5 + 0.34 * len(labels))
    for line in sends.requests.itertuples():
        text = f"{line.slot} c" if line.took == "copy_on_write" else f"{line.slot}"
        text = "" if line.sent == "nothing" else text
        _draw_cell(axes, line.step, 1 + requests.index(line.request), SENT[line.sent][0], text)
    for line in sends.steps.itertuples():
        _draw_cell(axes, line.step, 0, MAPPING[0] if line.mapping else PALE, "")
        sent = f"{line.numbers / 1e3:.1f}k" if line.numbers >= 1e3 else f"{line.numbers}"
        axes.text(line.step, len(labels) - 1, sent, ha="center", va="center", fontsize=8)
    axes.set_xlim(0.4, sends.steps["step"].max() + 0.6)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), labels)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(left=False)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("step (in a cell: the request's slot)")
    axes.set_title("What the host sends to the device, step by step")
    seen = [SENT[sent] for sent in SENT if sent in set(sends.requests["sent"])]
    keys = [Patch(color=shade, alpha=0.8, label=words) for shade, words in (*seen, MAPPING)]
    if "copy_on_write" in set(sends.requests["took"]):
        keys.append(Line2D([], [], color=INK, marker="$c$", lw=0, label="its last block was copied"))
    fig.legend(handles=keys, loc="outside lower center", ncols=2)
    return fig


def _draw_cell(axes: Axes, x: float, y: float, shade: str, text: str) -> None:
    axes.add_patch(Rectangle((x - 0.46, y - 0.42), 0.92, 0.84, facecolor=shade, alpha=0.8, lw=0))
    axes.text(x, y, text, ha="center", va="center", fontsize=7.5, color=INK)
