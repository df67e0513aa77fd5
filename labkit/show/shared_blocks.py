"""Texts in blocks, of which those that are alike up to their end are one."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from labkit.show.blocks import cell_text
from labkit.show.style import BLUE, GREY, INK, ORANGE, figure, styled

LONGEST_TEXT = 6  # characters of a token that are written in the usual size


@styled
def draw_shared_blocks(texts: Mapping[str, Sequence[str]], block_size: int) -> Figure:
    """Draw texts by label, a row per text and a cell per token. A full block of neighbouring texts that are
    alike up to its end is one box over all of them: it is computed once. The rest of a text has no full
    block, and is its own.
    """
    rows = list(texts.values())
    fig, axes = figure(1.0 + 0.42 * len(rows))
    for place in range(max(len(tokens) for tokens in rows) // block_size):
        end = (place + 1) * block_size
        begins = [tuple(tokens[:end]) if len(tokens) >= end else None for tokens in rows]
        for begin, group in groupby(range(len(rows)), key=lambda row: begins[row]):
            members = list(group)
            if begin is not None:
                corner = (end - block_size, members[0])
                _draw_box(axes, corner, begin[-block_size:], len(members))
    for row, tokens in enumerate(rows):
        start = len(tokens) // block_size * block_size
        for place, token in enumerate(tokens[start:], start):
            axes.add_patch(Rectangle((place, row + 0.08), 1, 0.84, facecolor=GREY, alpha=0.25, lw=0))
            _write(axes, place, row + 0.5, token)
    axes.set_xlim(-0.1, max(map(len, rows)) + 0.1)
    axes.set_ylim(len(rows) + 0.1, -0.1)
    axes.set_yticks([row + 0.5 for row in range(len(rows))], list(texts))
    axes.set_xticks(range(0, max(map(len, rows)) + 1, block_size))
    axes.set_xlabel("position in the text, tokens")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_title(f"Blocks of {block_size}: a box over several texts is computed and stored once")
    handles = [
        Patch(facecolor=BLUE, alpha=0.35, label="a full block of several texts"),
        Patch(facecolor=ORANGE, alpha=0.35, label="a full block of one"),
        Patch(facecolor=GREY, alpha=0.25, label="no full block"),
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=3)
    return fig


def _draw_box(axes: Axes, corner: tuple[int, int], tokens: Sequence[str], num_rows: int) -> None:
    """A block's box, `num_rows` high, with a line about it and its words in the middle."""
    (x, y), height = corner, num_rows - 0.16
    shade = BLUE if num_rows > 1 else ORANGE
    axes.add_patch(Rectangle((x, y + 0.08), len(tokens), height, facecolor=shade, alpha=0.35, lw=0))
    axes.add_patch(Rectangle((x, y + 0.08), len(tokens), height, fill=False, edgecolor=INK, lw=1))
    for place, token in enumerate(tokens, x):
        _write(axes, place, y + num_rows / 2, token)


def _write(axes: Axes, x: float, y: float, token: str) -> None:
    text = cell_text(token)
    size = 7.5 if len(text) < LONGEST_TEXT else 6
    axes.text(x + 0.5, y, text, ha="center", va="center", fontsize=size)
