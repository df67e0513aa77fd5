"""Figures with a row per request and a column per step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from labkit.show.colours import BLUE, GREEN, GREY, ORANGE, PALE, PURPLE, RED
from labkit.show.lanes import Box, Rows, draw_boxes
from labkit.show.style import Look, key_below, panels, styled

if TYPE_CHECKING:  # what is drawn; the engine that it was seen in is not needed
    from labkit.watch.counters import Positions
    from labkit.watch.flights import Flights
    from labkit.watch.sends import Sends

NOTHING: Look = {"facecolor": PALE}
HALF = 0.46  # of a step's box


Kinds = Mapping[str, tuple[str, Look]]  # by name: the words of the legend, and the look


def _box(row: int, step: int, look: Look, text: str = "") -> Box:
    return Box(row, step - HALF, step + HALF, look, text)


def _draw_steps(shown: Mapping[str, Rows], across: str, looks: Mapping[str, Look], ncols: int) -> Figure:
    fig = draw_boxes(shown, across, looks, ncols)
    fig.axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return fig


def _named(request_ids: Sequence[int]) -> list[str]:
    return [f"request {request_id}" for request_id in request_ids]


def _seen(kinds: Kinds, seen: Collection[str]) -> dict[str, Look]:
    return dict(kinds[kind] for kind in kinds if kind in seen)


REASONS: Kinds = {  # by the reason that `watch.record_rows` gives
    "kept": ("kept: the blocks are the same", NOTHING),
    "first": ("first: there was no row yet", GREY),
    "boundary": ("boundary: one more block", BLUE),
    "copy_on_write": ("copy-on-write: the last block is a copy now", ORANGE),
}


def draw_rows(rows: pd.DataFrame) -> Figure:
    """Draw the first layer's rows of the block table, a row per request and a column per step: whether the
    row was made anew, and why; in the cell, the tokens in the cache when the step began.

    rows: as `watch.record_rows` gives them. A step that only admitted requests is an empty column.
    """
    shown = rows[rows["layer"] == 0]
    requests = sorted(shown["request"].unique())
    boxes = [
        _box(requests.index(line.request), line.step, REASONS[line.reason][1], str(line.tokens))
        for line in shown.itertuples()
    ]
    across = "step (in a cell: tokens in the cache when the step began)"
    panel = {"Rows of layer 0's block table: kept, or made anew": (_named(requests), boxes)}
    return _draw_steps(panel, across, _seen(REASONS, set(shown["reason"])), 2)


SENT: Kinds = {  # by what a step sends for a request, or for all
    "nothing": ("nothing", NOTHING),
    "boundary": ("its row: one more block", BLUE),
    "copy_on_write": ("its row: its last block is a copy now", ORANGE),
    "joined": ("its row and its state: it joins", GREEN),
    "mapping": ("slot_mapping", PURPLE),
}


def draw_sends(sends: Sends) -> Figure:
    """Draw what the host sends to the device, a row per request and a column per step: what was sent for the
    request; in the cell, where anything was, its slot, and a c where its last block was copied.

    The row above says whether the slot mapping was sent, the row below how many bytes were sent in all. A
    step that only admitted requests is an empty column.
    """
    requests = sorted(sends.requests["request"].unique())
    names = ["slot_mapping", *_named(requests), "bytes sent"]
    boxes = []
    for line in sends.requests.itertuples():
        slot = f"{line.slot} c" if line.took == "copy_on_write" else f"{line.slot}"
        text = "" if line.sent == "nothing" else slot
        boxes.append(_box(1 + requests.index(line.request), line.step, SENT[line.sent][1], text))
    for line in sends.steps.itertuples():
        boxes.append(_box(0, line.step, SENT["mapping" if line.mapping else "nothing"][1]))
        sent = f"{line.bytes / 1e3:.0f}k" if line.bytes >= 1e3 else f"{line.bytes}"
        boxes.append(_box(len(names) - 1, line.step, "none", sent))
    across = "step (in a cell: the request's slot, and a c where its last block was copied)"
    looks = _seen(SENT, {"mapping", *sends.requests["sent"]})
    return _draw_steps({"What the host sends to the device, step by step": (names, boxes)}, across, looks, 2)


TOKENS: Kinds = {  # by what is written in the box
    "": ("handed out", BLUE),
    "end": ("handed out, and it ends the text", ORANGE),
    "×": ("made, and nobody gets it", {"facecolor": PALE, "edgecolor": RED, "lw": 1.5}),
}


def draw_flights(watched: Flights, ends: int | None = None) -> Figure:
    """Draw the steps that an engine launched, a column per step and a row per request: a box where the step
    made a token for the request, hollow if that token was thrown away.

    ends: the token id that ends a text; its box says so.
    """
    request_ids = sorted({i for flight in watched.flights for i in flight.request_ids})
    boxes = []
    for flight in watched.flights:
        tokens = dict(zip(flight.request_ids, flight.token_ids, strict=False))
        for request_id in flight.request_ids:
            is_end = ends is not None and tokens.get(request_id) == ends
            text = "×" if request_id not in flight.handed_to else "end" if is_end else ""
            boxes.append(_box(request_ids.index(request_id), flight.number, TOKENS[text][1], text))
    panel = {"Whose tokens each step makes, and who gets them": (_named(request_ids), boxes)}
    return _draw_steps(panel, "decode steps, in the order of their launches", dict(TOKENS.values()), 3)


# By the name of the write's counter.
WRITE_COLOURS = {"indexed": GREY, "generic": ORANGE, "full_batch": GREEN, "identity_pos": BLUE}


def draw_positions(runs: Mapping[str, Positions]) -> Figure:
    """Draw where the requests of a batch write, a panel per run, by its title: in a row per request its slot
    in each step, the darker the fuller its block, and in the row below which of the writes was taken."""
    shown: dict[str, Rows] = {}
    for title, run in runs.items():
        request_ids = list(dict.fromkeys(i for step in run.steps for i in step.slots))
        boxes = []
        for number, step in enumerate(run.steps, start=1):
            for request_id, slot in step.slots.items():
                look = {"facecolor": (BLUE, 0.1 + 0.6 * slot / run.block_size)}
                boxes.append(_box(request_ids.index(request_id), number, look, str(slot)))
        first = 1
        for path, steps in groupby(step.path for step in run.steps):
            last = first + len(list(steps)) - 1
            look = {"facecolor": (WRITE_COLOURS[path], 0.4)}
            boxes.append(Box(len(request_ids), first - HALF, last + HALF, look, path))
            first = last + 1
        title = f"{title}: equal slots in {run.num_equal} of {len(run.steps)} steps"
        shown[title] = [*_named(request_ids), "the write"], boxes
    return _draw_steps(shown, "decode step (in a cell: the slot of the request's new token)", {}, 1)


READY: Kinds = {  # by the path's name, the commonest at the bottom of a bar
    "in_place": ("in place: room and one holder", BLUE),
    "boundary": ("boundary: a new block", ORANGE),
    "copy_on_write": ("copy-on-write: a copy first", RED),
    "first": ("first block of a sequence", GREEN),
}


@styled
def draw_paths(runs: Mapping[str, Sequence[Mapping[str, int]]]) -> Figure:
    """Draw the path that each decoded token took, a panel per run, by its title, and a bar per step: its
    tokens, stacked by path.

    runs: as `record_paths` gives them. A step that only admitted requests has no bar.
    """
    fig, all_axes = panels(0.6 + 2.1 * len(runs), len(runs))
    seen = [path for path in READY if any(step.get(path) for steps in runs.values() for step in steps)]
    for axes, (title, steps) in zip(all_axes, runs.items(), strict=True):
        table = pd.DataFrame(steps, index=range(1, len(steps) + 1)).fillna(0)
        colours = [READY[path][1] for path in seen]
        table[seen].plot.bar(stacked=True, ax=axes, color=colours, width=0.8, legend=False, rot=0)
        axes.set(title=title, ylabel="tokens")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y")
    all_axes[-1].set_xlabel("step")
    key_below(fig, _seen(READY, seen), len(seen))
    return fig
