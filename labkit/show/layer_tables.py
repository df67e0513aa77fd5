"""The block tables of all layers beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.show.style import INK, colour, figure, styled

if TYPE_CHECKING:  # what is drawn; the engine that it was seen in is not needed
    from labkit.watch.blocks import LayerTables


@styled
def draw_tables(tables: Mapping[str, LayerTables]) -> Figure:
    """Draw the block tables of all layers, a panel per engine, by name, and a row per table: each block is a
    box with its place in the pool, in the colour of its request. A border marks what several requests share.
    """
    heights = [max(1.6, 0.8 + 0.6 * shown.num_tables) for shown in tables.values()]
    fig, panels = figure(0.5 + 0.36 * sum(heights), rows=len(tables), height_ratios=heights, squeeze=False)
    for axes, (name, shown) in zip(panels[:, 0], tables.items(), strict=True):
        width, shared = 0, _shared(shown)
        for request_id, rows in shown.places.items():
            shade = colour(request_id)
            for table_idx, indices in enumerate(rows):
                for place, index in enumerate(indices):
                    corner = (width + place, table_idx)
                    axes.add_patch(Rectangle(corner, 0.94, 0.84, facecolor=shade, alpha=0.45, lw=0))
                    if (table_idx, index) in shared:
                        axes.add_patch(Rectangle(corner, 0.94, 0.84, fill=False, edgecolor=INK, lw=1.4))
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
        axes.set_title(f"{name}: {num_tables} {'list' if num_tables == 1 else 'lists'} of places per request")
    return fig


def _shared(shown: LayerTables) -> set[tuple[int, int]]:
    """The blocks that several requests have, each as (table, place in the pool)."""
    holders = Counter(
        (table_idx, index)
        for rows in shown.places.values()
        for table_idx, indices in enumerate(rows)
        for index in indices
    )
    return {block for block, count in holders.items() if count > 1}
