"""The block tables of all layers beside each other, and how the pool behind them is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.show.style import BLUE, GREY, colour, figure, styled

if TYPE_CHECKING:  # what is drawn; the engine that it was seen in is not needed
    from labkit.watch.blocks import LayerTables, PoolUse


@styled
def draw_tables(tables: Mapping[str, LayerTables]) -> Figure:
    """Draw the block tables of all layers, a panel per engine, by name, and a row per table: each block is a
    box with its place in the pool, in the colour of its request."""
    heights = [max(1.6, 0.8 + 0.6 * shown.num_tables) for shown in tables.values()]
    fig, panels = figure(0.5 + 0.36 * sum(heights), rows=len(tables), height_ratios=heights, squeeze=False)
    for axes, (name, shown) in zip(panels[:, 0], tables.items(), strict=True):
        width = 0
        for request_id, rows in shown.places.items():
            shade = colour(request_id)
            for table_idx, indices in enumerate(rows):
                for place, index in enumerate(indices):
                    box = Rectangle((width + place, table_idx), 0.94, 0.84, facecolor=shade, alpha=0.45, lw=0)
                    axes.add_patch(box)
                    middle = (width + place + 0.47, table_idx + 0.42)
                    axes.text(*middle, str(index), ha="center", va="center", fontsize=8)
            middle = width + len(rows[0]) / 2
            axes.text(middle, -0.12, f"request {request_id}", ha="center", va="bottom", fontsize=8)
            width += len(rows[0]) + 0.6
        num_tables = shown.num_tables
        labels = [f"layer {i}" for i in range(num_tables)]
        if num_tables == 1:
            labels = [f"all {shown.num_layers} layers"]
        axes.set_yticks(np.arange(num_tables) + 0.42, labels)
        axes.tick_params(length=0)
        axes.set_xticks([])
        axes.set_xlim(0, width)
        axes.set_ylim(num_tables, -0.5)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        axes.set_title(f"{name}: {num_tables} {'list' if num_tables == 1 else 'lists'} of places a request")
    return fig


@styled
def draw_pool_use(uses: Mapping[str, Sequence[PoolUse]], num_blocks: int, block_size: int) -> Figure:
    """Draw the use of a pool of `num_blocks` blocks after each step, a line per engine, by name: the free
    blocks, and the slots that are set aside and empty."""
    fig, (top, bottom) = figure(4.2, rows=2, sharex=True)
    widths, shades, styles = (6, 2), (GREY, BLUE), ("-", "--")
    for (name, steps), width, shade, style in zip(uses.items(), widths, shades, styles, strict=True):
        line = {"lw": width, "color": shade, "label": name, "ls": style}
        top.plot([use.free_blocks for use in steps], **line)
        bottom.plot([use.empty_slots for use in steps], **line)
    top.set_ylim(0, num_blocks + 0.5)
    bottom.set_ylim(bottom=0)
    top.set_title(f"Blocks free in a layer's pool of {num_blocks}", pad=20)
    bottom.set_title(f"Slots set aside and empty in a layer (blocks of {block_size})")
    bottom.set_xlabel("step")
    top.legend(ncols=len(uses), loc="lower left", bbox_to_anchor=(0, 0.98), borderaxespad=0)
    for axes in (top, bottom):
        axes.grid()
        axes.locator_params(axis="y", integer=True, nbins=6)
    return fig
