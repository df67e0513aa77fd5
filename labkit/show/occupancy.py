"""A GPU's multiprocessors: what is in one, and how many programs of a kernel they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.show.style import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, SKY, figure, styled

if TYPE_CHECKING:  # what is drawn
    from labkit.learn.before_03.occupancy import GPU

MOST_WAVES = 6  # that are drawn
FILLED = LinearSegmentedColormap.from_list("filled", [PALE, GREEN])


@styled
def draw_multiprocessor(gpu: GPU) -> Figure:
    """Draw a GPU, with its multiprocessors above its L2 cache and its memory, and one multiprocessor, large:
    places for warps, registers, shared memory."""
    fig, axes = figure(3.6)
    across = 12
    for i in range(gpu.multiprocessors):
        x, y = i % across, 11 - i // across
        shade = ORANGE if i == across - 1 else SKY
        axes.add_patch(Rectangle((x + 0.08, y + 0.08), 0.84, 0.84, facecolor=shade, alpha=0.7, lw=0))
    _box(axes, (0, -1.1), 12, 1.0, BLUE, f"L2 cache, {gpu.l2_mb} MB")
    _box(axes, (0, -2.6), 12, 1.4, GREY, f"memory, {gpu.memory_gb} GB")
    titles = f"{gpu.name}: {gpu.multiprocessors} multiprocessors", "One of them"
    fig.set_label(". ".join(titles))
    for x, title in zip((0, 14), titles, strict=True):
        axes.text(x, 12.5, title, weight="bold", va="center")
    for corner in (0.0, 12.0):  # from the small square to the large one
        axes.plot([12, 14], [11 + corner / 12, corner - 0.1], color=ORANGE, lw=1)
    axes.add_patch(Rectangle((14, -0.1), 13.4, 12.1, fill=False, edgecolor=ORANGE, lw=2))
    for i in range(gpu.warps):
        x, y = 14.4 + 0.78 * (i % 16), 10.9 - 0.85 * (i // 16)
        axes.add_patch(Rectangle((x, y), 0.66, 0.7, facecolor=GREEN, alpha=0.6, lw=0))
    axes.text(14.4, 7.6, f"places for {gpu.warps} warps of 32 threads, {gpu.programs} programs", va="center")
    kb = gpu.registers * 4 // 1024
    _box(axes, (14.4, 4.9), 12.5, 1.9, SKY, f"{gpu.registers:,} registers ({kb} KB), each of one thread")
    _box(axes, (14.4, 2.5), 12.5, 1.9, PURPLE, f"shared memory, {gpu.shared_kb} KB, each part of one program")
    _box(axes, (14.4, 0.4), 12.5, 1.6, PALE, "arithmetic units, tensor cores")
    axes.set_xlim(-0.2, 27.8)
    axes.set_ylim(-2.8, 13.1)
    axes.axis("off")
    return fig


def _box(axes: Axes, corner: tuple[float, float], width: float, height: float, shade: str, text: str) -> None:
    axes.add_patch(Rectangle(corner, width, height, facecolor=shade, alpha=0.45, edgecolor=INK, lw=0.6))
    middle = (corner[0] + width / 2, corner[1] + height / 2)
    axes.text(*middle, text, ha="center", va="center", fontsize=9, color=INK)


@styled
def draw_occupancy(room: Mapping[str, int], waves: Sequence[Sequence[int]], title: str) -> Figure:
    """Draw how many programs a multiprocessor holds by each of its limits, the smallest in orange, and how
    full the multiprocessors are in each wave.

    room: programs by the limit's name. waves: programs on each multiprocessor, a list per wave; the first
    MOST_WAVES are drawn.
    """
    fit = min(room.values())
    shown = waves[:MOST_WAVES]
    heights = [0.34 * len(room), 0.3 * max(len(shown), 1)]
    fig, (top, bottom) = figure(1.75 + sum(heights), rows=2, height_ratios=heights)
    for row, count in enumerate(room.values()):
        top.barh(row, count, 0.62, color=ORANGE if count == fit else SKY)
        top.text(count, row, f" {count}", va="center", fontsize=9)
    top.set_yticks(range(len(room)), [f"by {name}" for name in room])
    top.set_ylim(len(room) - 0.5, -0.5)
    top.set_xscale("symlog", base=2, linthresh=1)
    top.set_xlim(0, 1.35 * max(room.values()))
    top.set_xticks([count for count in (0, 1, 2, 4, 8, 16, 32, 64, 128, 256) if count <= max(room.values())])
    top.xaxis.set_major_formatter("{x:.0f}")
    top.set_xlabel("programs that one multiprocessor holds at a time (the smallest decides)")
    top.set_title(title)
    if shown:
        cells = np.array(shown) / max(fit, 1)
        bottom.pcolormesh(cells, cmap=FILLED, vmin=0, vmax=1, edgecolor="white", lw=0.3)
        for row, wave in enumerate(shown):
            text = f"{sum(wave):,}"
            bottom.text(
                1.01, row + 0.5, text, va="center", transform=bottom.get_yaxis_transform(), fontsize=9
            )
    bottom.set_yticks(np.arange(len(shown)) + 0.5, [f"wave {i + 1}" for i in range(len(shown))])
    bottom.set_ylim(max(len(shown), 1), 0)
    hidden = len(waves) - len(shown)
    more = f"; {hidden} more waves are not drawn" if hidden else ""
    bottom.set_xlabel(f"multiprocessor (green: full; on the right: programs in the wave{more})")
    return fig
