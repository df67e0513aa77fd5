"""The rows of the block table that were made anew, step by step, and why; and what that does to a step."""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from labkit.show.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    RED,
    YELLOW,
    colour,
    figure,
    styled,
)

REASONS = {  # by the reason that `watch.record_rows` gives: the colour and the words of the legend
    "kept": (PALE, "kept: the blocks are the same"),
    "first": (GREY, "first: there was no row yet"),
    "boundary": (BLUE, "boundary: one more block"),
    "copy_on_write": (ORANGE, "copy-on-write: the last block is a copy now"),
    "forgotten": (PURPLE, "made anew although the blocks are the same"),
    "changed": (YELLOW, "the blocks changed in another way"),
    "stale": (RED, "kept although the blocks changed: wrong"),
}


@styled
def draw_rows(rows: pd.DataFrame, layer_idx: int = 0) -> Figure:
    """Draw one layer's rows of the block table, a row per request and a column per step: whether the row was
    made anew, and why; in the cell, the tokens in the cache when the step began.

    rows: as `watch.record_rows` gives them. A step that only admitted requests is an empty column.
    """
    shown = rows[rows["layer"] == layer_idx]
    requests = sorted(shown["request"].unique())
    fig, axes = figure(1.35 + 0.36 * len(requests))
    for line in shown.itertuples():
        x, y = line.step, requests.index(line.request)
        face = REASONS[line.reason][0]
        axes.add_patch(Rectangle((x - 0.46, y - 0.42), 0.92, 0.84, facecolor=face, alpha=0.8, lw=0))
        axes.text(x, y, str(line.tokens), ha="center", va="center", fontsize=7.5, color=INK)
    axes.set_xlim(0.4, rows["step"].max() + 0.6)
    axes.set_ylim(len(requests) - 0.5, -0.5)
    axes.set_yticks(range(len(requests)), [f"request {request}" for request in requests])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(left=False)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("step (in a cell: tokens in the cache when the step began)")
    axes.set_title(f"Rows of layer {layer_idx}'s block table: kept, or made anew")
    seen = [reason for reason in REASONS if reason in set(shown["reason"])]
    keys = [Patch(color=REASONS[r][0], alpha=0.8, label=REASONS[r][1]) for r in seen]
    fig.legend(handles=keys, loc="outside lower center", ncols=2)
    return fig


@styled
def draw_step_times(series: Mapping[str, Sequence[float]], mark_every: int) -> Figure:
    """Draw the milliseconds of each decode step, a line per rung, by name. There is a mark below every
    `mark_every` steps."""
    fig, axes = figure(3.2)
    for i, (name, times) in enumerate(series.items()):
        axes.plot(range(1, len(times) + 1), times, color=colour(i), lw=1, label=name)
    num_steps = max(map(len, series.values()))
    marks = range(1 + mark_every, num_steps + 1, mark_every)
    axes.plot(marks, [0] * len(marks), "^", color=INK, transform=axes.get_xaxis_transform(), clip_on=False)
    axes.set_xlim(0, num_steps + 1)
    axes.grid(axis="y")
    axes.set_xlabel(f"decode step (▲: the step after a boundary, every {mark_every})")
    axes.set_ylabel("milliseconds (not from 0)")
    axes.set_title("Every decode step of a run")
    axes.legend(loc="upper right", ncols=len(series))
    return fig
