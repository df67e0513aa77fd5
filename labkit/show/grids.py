"""Figures with a row per request and a column per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from labkit.show.colours import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, RED, colour
from labkit.show.marks import box, key_below, name_rows, write
from labkit.show.style import figure, panels, styled

if TYPE_CHECKING:  # what is drawn; the engine that it was seen in is not needed
    from labkit.watch.counters import Positions
    from labkit.watch.flights import Flights
    from labkit.watch.sends import Sends


REASONS = {  # by the reason that `watch.record_rows` gives: the colour and the words of the legend
    "kept": (PALE, "kept: the blocks are the same"),
    "first": (GREY, "first: there was no row yet"),
    "boundary": (BLUE, "boundary: one more block"),
    "copy_on_write": (ORANGE, "copy-on-write: the last block is a copy now"),
}


@styled
def draw_rows(rows: pd.DataFrame) -> Figure:
    """Draw the first layer's rows of the block table, a row per request and a column per step: whether the
    row was made anew, and why; in the cell, the tokens in the cache when the step began.

    rows: as `watch.record_rows` gives them. A step that only admitted requests is an empty column.
    """
    shown = rows[rows["layer"] == 0]
    requests = sorted(shown["request"].unique())
    fig, axes = figure(1.35 + 0.36 * len(requests))
    for line in shown.itertuples():
        face = REASONS[line.reason][0]
        _draw_cell(axes, line.step, requests.index(line.request), face, str(line.tokens))
    _name_cells(axes, [f"request {request}" for request in requests], rows["step"].max())
    axes.set_xlabel("step (in a cell: tokens in the cache when the step began)")
    axes.set_title("Rows of layer 0's block table: kept, or made anew")
    seen = [reason for reason in REASONS if reason in set(shown["reason"])]
    key_below(fig, {REASONS[r][1]: {"color": REASONS[r][0], "alpha": 0.8} for r in seen}, 2)
    return fig


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

    The row above says whether the slot mapping was sent, the row below how many bytes were sent in all. A
    step that only admitted requests is an empty column.
    """
    requests = sorted(sends.requests["request"].unique())
    labels = ["slot_mapping", *(f"request {request}" for request in requests), "bytes sent"]
    fig, axes = figure(1.5 + 0.34 * len(labels))
    for line in sends.requests.itertuples():
        text = f"{line.slot} c" if line.took == "copy_on_write" else f"{line.slot}"
        text = "" if line.sent == "nothing" else text
        _draw_cell(axes, line.step, 1 + requests.index(line.request), SENT[line.sent][0], text)
    for line in sends.steps.itertuples():
        _draw_cell(axes, line.step, 0, MAPPING[0] if line.mapping else PALE, "")
        sent = f"{line.bytes / 1e3:.0f}k" if line.bytes >= 1e3 else f"{line.bytes}"
        write(axes, line.step, len(labels) - 1, sent, fontsize=8)
    _name_cells(axes, labels, sends.steps["step"].max())
    axes.set_xlabel("step (in a cell: the request's slot)")
    axes.set_title("What the host sends to the device, step by step")
    seen = [SENT[sent] for sent in SENT if sent in set(sends.requests["sent"])]
    looks = {words: {"color": shade, "alpha": 0.8} for shade, words in (*seen, MAPPING)}
    copied = Line2D([], [], color=INK, marker="$c$", lw=0, label="its last block was copied")
    key_below(fig, looks, 2, *[copied] * ("copy_on_write" in set(sends.requests["took"])))
    return fig


def _draw_cell(axes: Axes, x: float, y: float, shade: str, text: str) -> None:
    box(axes, (x - 0.46, y - 0.42), 0.92, 0.84, fc=shade, alpha=0.8, lw=0)
    write(axes, x, y, text, fontsize=7.5, color=INK)


def _name_cells(axes: Axes, rows: Sequence[str], num_steps: int) -> None:
    name_rows(axes, rows)
    axes.tick_params(left=False)
    axes.spines["left"].set_visible(False)
    axes.set_xlim(0.4, num_steps + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


BOX = 0.8


@styled
def draw_flights(watched: Flights, ends: int | None = None) -> Figure:
    """Draw the steps that an engine launched, a column per step and a row per request: a box where the step
    made a token for the request, hollow if that token was thrown away.

    ends: the token id that ends a text; its box says so.
    """
    request_ids = sorted({i for flight in watched.flights for i in flight.request_ids})
    fig, axes = figure(1.5 + 0.4 * len(request_ids))
    for flight in watched.flights:
        tokens = dict(zip(flight.request_ids, flight.token_ids, strict=False))
        for request_id in flight.request_ids:
            number, row = flight.number, request_ids.index(request_id)
            place = (number - BOX / 2, row - BOX / 2)
            if request_id not in flight.handed_to:
                box(axes, place, BOX, BOX, fc=PALE, ec=RED, lw=1.5)
                write(axes, number, row, "×", color=RED, weight="bold")
            elif ends is not None and tokens.get(request_id) == ends:
                box(axes, place, BOX, BOX, lw=0, fc=ORANGE)
                write(axes, number, row, "end", color=INK, fontsize=8)
            else:
                box(axes, place, BOX, BOX, lw=0, fc=BLUE, alpha=0.75)
    axes.set_xlim(0.4, len(watched.flights) + 0.6)
    axes.set_xticks(range(1, len(watched.flights) + 1))
    axes.set_yticks(range(len(request_ids)), [f"request {i}" for i in request_ids])
    axes.set(ylim=(len(request_ids) - 0.4, -0.6), xlabel="decode steps, in the order of their launches")
    axes.set_title("Whose tokens each step makes, and who gets them")
    looks = {
        "handed out": {"facecolor": BLUE, "alpha": 0.75},
        "handed out, and it ends the text": ORANGE,
        "made, and nobody gets it": {"facecolor": PALE, "edgecolor": RED, "lw": 1.5},
    }
    key_below(fig, looks, 3)
    return fig


# By the name of the write's counter.
WRITE_COLOURS = {"indexed": GREY, "generic": ORANGE, "full_batch": GREEN, "identity_pos": BLUE}
STRIP = 0.16  # of a panel's height: the strip that names the write


@styled
def draw_positions(runs: Mapping[str, Positions]) -> Figure:
    """Draw where the requests of a batch write, a panel per run, by its title: each request's slot against
    the step, and in a strip below it which of the writes was taken.

    Where lines lie on each other, the earlier request's is the wider one.
    """
    fig, all_axes = panels(0.5 + 1.75 * len(runs), len(runs), sharex=True)
    for axes, (title, run) in zip(all_axes, runs.items(), strict=True):
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
        span = run.block_size - 1
        height = STRIP * span
        bottom = -0.12 * span - height
        for path, group in groupby(enumerate(run.steps, start=1), key=lambda numbered: numbered[1].path):
            places = [number for number, _ in group]  # of consecutive steps with the same write
            left, width = places[0] - 0.5, len(places)
            axes.broken_barh([(left, width)], (bottom, height), color=WRITE_COLOURS[path], alpha=0.35, lw=0)
            if width >= 3:  # room for its name
                write(axes, left + width / 2, bottom + height / 2, path, fontsize=8, color=INK)
        axes.set(ylim=(bottom - 0.04 * span, 1.1 * span), xlim=(0.3, len(run.steps) + 0.7))
        axes.set(title=f"{title}: equal slots in {run.num_equal} of {len(run.steps)} steps", ylabel="slot")
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 4, 8, 10]))
        axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick < run.block_size])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y")
    all_axes[-1].set_xlabel("decode step (strip: how the batch is written)")
    return fig


# By the path's name: the colour and the words of the legend, the commonest at the bottom of a bar.
READY_COLOURS = {
    "in_place": (BLUE, "in place: room and one holder"),
    "boundary": (ORANGE, "boundary: a new block"),
    "copy_on_write": (RED, "copy-on-write: a copy first"),
    "first": (GREEN, "first block of a sequence"),
}


@styled
def draw_paths(runs: Mapping[str, Sequence[Mapping[str, int]]]) -> Figure:
    """Draw the path that each decoded token took, a panel per run, by its title, and a bar per step: its
    tokens, stacked by path.

    runs: as `record_paths` gives them. A step that only admitted requests has no bar.
    """
    fig, all_axes = panels(0.6 + 2.1 * len(runs), len(runs))
    seen = [
        path for path in READY_COLOURS if any(step.get(path) for steps in runs.values() for step in steps)
    ]
    for axes, (title, steps) in zip(all_axes, runs.items(), strict=True):
        numbers = range(1, len(steps) + 1)
        below = [0] * len(steps)
        for path in seen:
            counts = [step.get(path, 0) for step in steps]
            axes.bar(numbers, counts, bottom=below, color=READY_COLOURS[path][0], width=0.8)
            below = [low + count for low, count in zip(below, counts, strict=True)]
        axes.set(title=title, ylabel="tokens")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlim(0.3, len(steps) + 0.7)
        axes.grid(axis="y")
    all_axes[-1].set_xlabel("step")
    key_below(fig, {READY_COLOURS[path][1]: {"color": READY_COLOURS[path][0]} for path in seen}, len(seen))
    return fig
