"""Pictures of the KV cache's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.show.colours import GREY, INK, PALE, colour
from labkit.show.sliders import sliders
from labkit.show.style import box, figure, styled, write

if TYPE_CHECKING:  # what is drawn; the engine that it was seen in is not needed
    from labkit.watch.blocks import BlocksSnapshot, SequenceView

CELLS_ACROSS = 25  # tokens in a row of the figure
LARGEST_BLOCK = 16  # tokens that fit beside a sequence's name
LONGEST_TEXT = 6  # characters of a token in its cell


@styled
def draw_blocks(snap: BlocksSnapshot, title: str = "") -> Figure:
    """Draw the blocks of a cache: above, each sequence's tokens in their logical blocks, the last for which
    there is room, with the number of the physical block; below, the pool, each block in the colours of the
    sequences that hold it.

    Raises ValueError for blocks of more than LARGEST_BLOCK tokens, which are too large to draw.
    """
    if snap.block_size > LARGEST_BLOCK:
        raise ValueError(
            f"a block of {snap.block_size} tokens is too large to draw; give the engine to be drawn a "
            f"block_size of {LARGEST_BLOCK} or less"
        )
    per_row = max(1, (CELLS_ACROSS + 1) // (snap.block_size + 1))
    pool_rows = -(-snap.num_blocks // per_row)
    heights = [max(1, len(snap.sequences)) * 1.5 + 0.4, pool_rows * 1.7]
    fig, (top, bottom) = figure(0.55 + 0.37 * sum(heights), rows=2, height_ratios=heights)
    for row, sequence in enumerate(snap.sequences):
        _draw_sequence(top, sequence, snap.block_size, -1.5 * row)
    top.set_title(title or "Logical blocks: what each sequence sees")
    bottom.set_title(f"Physical blocks: layer {snap.layer_idx}'s pool")
    for index in range(snap.num_blocks):
        x, y = (index % per_row) * (snap.block_size + 1), -1.7 * (index // per_row)
        holders = [s for s in snap.sequences if index in s.block_indices]
        length, edge = (snap.lengths[index], INK) if holders else (0, GREY)
        box(bottom, (x, y), snap.block_size, 1, fc=PALE if holders else "white", lw=0)
        for stripe, holder in enumerate(holders):  # a shared block shows every holder's colour
            height = 1 / len(holders)
            box(bottom, (x, y + stripe * height), length, height, fc=colour_of(holder), alpha=0.6, lw=0)
        shared = len(holders) > 1
        box(bottom, (x, y), snap.block_size, 1, fill=False, ec=edge, lw=2 if shared else 0.8)
        label = f"{index}" + (f" · held by {len(holders)}" if shared else "" if holders else " · free")
        bottom.text(x, y + 1.06, label, va="bottom", fontsize=7, color=edge)
    for axes, height in ((top, heights[0]), (bottom, heights[1])):
        axes.set(xlim=(-0.1, CELLS_ACROSS + 0.1), ylim=(1.6 - height, 1.55))
        axes.axis("off")
    return fig


def _draw_sequence(axes: Axes, sequence: SequenceView, block_size: int, y: float) -> None:
    axes.text(0, y + 0.5, sequence.label, va="center", weight="bold", color=INK, fontsize=9)
    x = 4.0
    first = max(0, len(sequence.block_indices) - int((CELLS_ACROSS - x) // (block_size + 0.25)))
    for place, block_index in enumerate(sequence.block_indices[first:], start=first):
        tokens = sequence.tokens[place * block_size : (place + 1) * block_size]
        for i in range(block_size):
            filled = i < len(tokens)
            box(axes, (x + i, y), 1, 1, fc=colour_of(sequence) if filled else "white", alpha=0.35, lw=0)
            if filled:
                text = cell_text(tokens[i])
                size = 6.5 if len(text) < LONGEST_TEXT else 5.5
                write(axes, x + i + 0.5, y + 0.5, text, fontsize=size)
        box(axes, (x, y), block_size, 1, fill=False, ec=INK, lw=0.9)
        number = f"block {block_index}"
        axes.text(x + block_size / 2, y + 1.04, number, ha="center", va="bottom", fontsize=7, color=INK)
        x += block_size + 0.25


def colour_of(sequence: SequenceView) -> str:
    """The colour of a sequence: one per request; all entries of the prefix cache are grey."""
    return GREY if sequence.request_id is None else colour(sequence.request_id)


def cell_text(token: str) -> str:
    """The text of a token for a narrow cell: blanks and line ends are made visible, and more than
    LONGEST_TEXT characters cut."""
    shown = token.replace("\n", "↵").replace(" ", "·")
    return shown if len(shown) <= LONGEST_TEXT else shown[: LONGEST_TEXT - 1] + "…"


def blocks_slider(snapshots: Sequence[BlocksSnapshot]) -> None:
    """Show `draw_blocks` of one of the snapshots, with a slider that picks the step. Needs JupyterLab and
    ipywidgets."""

    def draw(step: int) -> None:
        draw_blocks(snapshots[step], f"Step {step} of {len(snapshots) - 1}")

    sliders(draw, step=range(len(snapshots)))
